import { readFileSync } from 'node:fs'
import { spawn } from 'node:child_process'

const everyMs = 5

export interface MeasuredRun {
  readonly stdout: string
  /** The most that the process and its children had in memory at one moment, in MiB. */
  readonly peakMib: number
}

/** Runs a Node program and watches its memory and that of the programs it starts. */
export function runWatched(argv: readonly string[]): Promise<MeasuredRun> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, argv, { stdio: ['ignore', 'pipe', 'inherit'] })
    let stdout = ''
    let peakMib = 0
    child.stdout.on('data', (chunk: Buffer) => (stdout += chunk.toString()))
    const timer = setInterval(() => {
      peakMib = Math.max(peakMib, child.pid === undefined ? 0 : residentMib(child.pid))
    }, everyMs)
    child.on('error', reject)
    child.on('close', (code) => {
      clearInterval(timer)
      if (code === 0) resolve({ stdout, peakMib })
      else reject(new Error(`${argv.join(' ')} ended with ${code}`))
    })
  })
}

function residentMib(pid: number): number {
  const { name, mib } = statusOf(String(pid))
  const children = read(`/proc/${pid}/task/${pid}/children`).split(' ').filter(Boolean)
  // Until a child becomes another program, it shares all its memory with its parent.
  const others = children.map(statusOf).filter((one) => one.name !== name)
  return others.reduce((sum, one) => sum + one.mib, mib)
}

function statusOf(pid: string): { readonly name: string; readonly mib: number } {
  const text = read(`/proc/${pid}/status`)
  const name = /^Name:\s+(.*)/m.exec(text)?.[1] ?? ''
  return { name, mib: Number(/^VmRSS:\s+(\d+)/m.exec(text)?.[1] ?? 0) / 1024 }
}

/** Empty for a process that has just ended. */
function read(file: string): string {
  try {
    return readFileSync(file, 'utf8').trim()
  } catch {
    return ''
  }
}
