import { spawn, spawnSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'

/** The init script lies beside the sources, not the compiled files. */
const init = fileURLToPath(new URL('../../../test/support/uml-init', import.meta.url))

/** A reason why nothing can run in User Mode Linux here, or false. */
export const umlSkip: string | false = (() => {
  if (process.platform !== 'linux') return 'User Mode Linux runs on Linux only'
  const found = spawnSync('linux.uml', ['--version'])
  if (found.error) return 'linux.uml is not installed (Debian package user-mode-linux)'
  if (!existsSync('/usr/lib/uml/modules')) return 'the modules of User Mode Linux are missing'
  if (!existsSync('/sbin/modprobe')) return 'modprobe is not installed (Debian package kmod)'
  return false
})()

export interface UmlOptions {
  /** The whole machine is killed after this long. */
  readonly timeoutMs?: number
  readonly memory?: string
  /** Sees each line the command prints, as it comes, and what the kernel says in between. */
  readonly onLine?: (line: string) => void
}

export interface UmlResult {
  readonly code: number
  /** What appeared on the console between the command's start and its end. */
  readonly output: string
}

/** The machine hung, or died before the command had ended. Its message holds the console's end. */
export class UmlError extends Error {
  override readonly name = 'UmlError'
  readonly console: string

  constructor(what: string, lines: readonly string[]) {
    super(`${what}; its console said at the end:\n${lines.slice(-40).join('\n')}`)
    this.console = lines.join('\n')
  }
}

/**
 * Boots a Linux kernel that has IPVS as a plain process on this machine's files, which it cannot
 * change, runs one shell command in it and tells how that ended. Takes about two seconds more
 * than the command. Needs no rights.
 */
export async function runInUml(command: string, options: UmlOptions = {}): Promise<UmlResult> {
  const scratch = mkdtempSync(join(tmpdir(), 'uml-'))
  const marker = `uml-exit-${randomUUID()}`
  writeFileSync(join(scratch, 'command'), `cd ${quoted(process.cwd())}\n${command}\n`)
  writeFileSync(join(scratch, 'marker'), marker)
  try {
    return await boot(scratch, marker, options)
  } finally {
    rmSync(scratch, { recursive: true, force: true })
  }
}

/** For the conformance suite: a kernel that is itself a process can be slow for a moment. */
export const umlPatience = 'CONFORMANCE_PATIENCE=4'

/** Quotes one word for a POSIX shell. */
export function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`
}

async function boot(scratch: string, marker: string, options: UmlOptions): Promise<UmlResult> {
  const { timeoutMs = 300_000, memory = '1G', onLine } = options
  const kernelArguments = [
    `mem=${memory}`,
    'root=/dev/root',
    'rootfstype=hostfs',
    'rootflags=/',
    'ro',
    `init=${init}`,
    `uml_scratch=${scratch}`,
    `uml_dir=${scratch}`,
    'con=null',
    'con0=fd:0,fd:1',
    'con1=null',
    'quiet',
    // IPVS complains on the console about every connection it cannot place.
    'loglevel=2',
    // A panic or an oops ends the machine at once and is an error, not a silence.
    'panic=-1',
    'oops=panic',
  ]
  // Its own process group, since the kernel keeps processes of its own for what runs in it.
  const machine = spawn('linux.uml', kernelArguments, {
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true,
    // The machine's memory is a file in TMPDIR.
    env: { ...process.env, TMPDIR: existsSync('/dev/shm') ? '/dev/shm' : scratch, HOME: scratch },
  })
  const lines: string[] = []
  // Filled in by the console, which the compiler does not see.
  const end: { code: number | undefined } = { code: undefined }
  let started = -1
  const hear = (raw: string) => {
    const line = raw.replaceAll('\r', '')
    const at = line.indexOf(marker)
    if (at < 0) {
      if (end.code !== undefined) return
      lines.push(line)
      if (started >= 0) onLine?.(line)
    } else if (line.endsWith(' start')) started = lines.length
    else end.code = Number(line.slice(at + marker.length))
  }
  for (const stream of [machine.stdout, machine.stderr]) {
    createInterface({ input: stream }).on('line', hear)
  }
  const wait = { isOver: false }
  const timer = setTimeout(() => {
    wait.isOver = true
    killGroup(machine.pid)
  }, timeoutMs)
  const forgetSignals = dieWithUs(machine.pid)
  const death = await new Promise<string>((resolve) => {
    machine.on('error', (error) => resolve(error.message))
    machine.on('close', (status, signal) => resolve(signal ?? `status ${status ?? '?'}`))
  })
  forgetSignals()
  clearTimeout(timer)
  killGroup(machine.pid)
  if (end.code !== undefined) return { code: end.code, output: lines.slice(started).join('\n') }
  throw new UmlError(
    wait.isOver
      ? `User Mode Linux did not end within ${timeoutMs} ms`
      : `User Mode Linux died before the command had ended (${death})`,
    lines,
  )
}

/** In a group of its own the machine would outlive a runner that is told to stop. */
function dieWithUs(pid: number | undefined): () => void {
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const
  const onSignal = (signal: NodeJS.Signals) => {
    killGroup(pid)
    forget()
    process.kill(process.pid, signal)
  }
  const onExit = () => killGroup(pid)
  const forget = () => {
    for (const signal of signals) process.off(signal, onSignal)
    process.off('exit', onExit)
  }
  for (const signal of signals) process.on(signal, onSignal)
  process.on('exit', onExit)
  return forget
}

function killGroup(pid: number | undefined): void {
  if (pid === undefined) return
  try {
    process.kill(-pid, 'SIGKILL')
  } catch {
    // Nothing of it is left, which is expected.
  }
}
