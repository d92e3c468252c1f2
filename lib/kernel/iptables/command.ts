import { spawn } from 'node:child_process'
import { IptablesError } from './error.js'
import { programEnvironment } from '../environment.js'

export interface CommandOutput {
  readonly code: number
  readonly stdout: string
  readonly stderr: string
}

/** Runs a program by argument vector; rejects with IptablesError when it cannot be run at all. */
export type Run = (
  file: string,
  args: readonly string[],
  options?: RunOptions,
) => Promise<CommandOutput>

export interface RunOptions {
  readonly stdin?: string
  readonly timeoutMs?: number
  /** Takes what the program prints, piece by piece, instead of keeping all of it in `stdout`. */
  readonly onOutput?: (text: string) => void
}

export const runProgram: Run = (file, args, options = {}) =>
  new Promise((resolve, reject) => {
    const child = spawn(file, args, {
      stdio: ['pipe', 'pipe', 'pipe'],
      shell: false,
      env: programEnvironment(),
    })
    const stdout: Buffer[] = []
    const stderr: Buffer[] = []
    const timeoutMs = options.timeoutMs ?? 120_000
    let timedOut = false
    const timer = setTimeout(() => {
      timedOut = true
      child.kill('SIGKILL')
    }, timeoutMs)
    const { onOutput } = options
    if (onOutput) child.stdout.setEncoding('utf8').on('data', onOutput)
    else child.stdout.on('data', (chunk: Buffer) => stdout.push(chunk))
    child.stderr.on('data', (chunk: Buffer) => stderr.push(chunk))
    // A program that exits before it has read everything closes the pipe; its exit code says why.
    child.stdin.on('error', () => undefined)
    child.stdin.end(options.stdin ?? '')
    child.on('error', (cause: NodeJS.ErrnoException) => {
      clearTimeout(timer)
      const kind =
        cause.code === 'ENOENT' ? 'missing' : cause.code === 'EACCES' ? 'denied' : 'failed'
      reject(new IptablesError(kind, `run ${file}: ${cause.message}`, { cause }))
    })
    child.on('close', (code, killedBy) => {
      clearTimeout(timer)
      const complaint = Buffer.concat(stderr).toString('utf8')
      const fail = (kind: 'timed-out' | 'failed', reason: string) =>
        reject(new IptablesError(kind, `run ${file}: ${reason}`, { detail: complaint }))
      if (timedOut) fail('timed-out', `no end after ${timeoutMs} ms`)
      else if (code === null) fail('failed', `killed by ${String(killedBy)}`)
      else resolve({ code, stdout: Buffer.concat(stdout).toString('utf8'), stderr: complaint })
    })
  })
