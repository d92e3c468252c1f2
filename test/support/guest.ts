import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'

/** Boots another kernel on this machine's files. All ways to boot one share this file. */

/** The init script lies beside the sources, not the compiled files. */
export const guestInit = fileURLToPath(new URL('../../../test/support/guest-init', import.meta.url))

export interface GuestOptions {
  /** The whole machine is killed after this long. */
  readonly timeoutMs?: number
  readonly memory?: string
  /** Gets each line of the console as it comes: of the command and of the kernel. */
  readonly onLine?: (line: string) => void
}

export interface GuestResult {
  readonly code: number
  /** What appeared on the console between the command's start and its end. */
  readonly output: string
}

/** One way to boot a kernel. */
export interface Machine {
  readonly name: string
  /** The folder of the modules of its kernel; a folder in it is named by the version. */
  readonly modules: string
  /** Programs before those of this machine on the PATH: by name, a path to link to or a script. */
  readonly programs?: Readonly<Record<string, string>>
  /** The command that starts it; `words` go to the command line of its kernel. */
  start(words: readonly string[], scratch: string): StartedBy
}

interface StartedBy {
  readonly file: string
  readonly args: readonly string[]
  readonly env?: NodeJS.ProcessEnv
}

/** The machine hung, or died before the command ended. The message has the end of the console. */
export class GuestError extends Error {
  override readonly name = 'GuestError'
  readonly console: string

  constructor(what: string, lines: readonly string[]) {
    super(`${what}; its console said at the end:\n${lines.slice(-40).join('\n')}`)
    this.console = lines.join('\n')
  }
}

/** Boots a machine, runs one shell command in it and returns how the command ended. */
export async function runInGuest(
  machine: Machine,
  command: string,
  options: GuestOptions = {},
): Promise<GuestResult> {
  const scratch = mkdtempSync(join(tmpdir(), 'guest-'))
  const marker = `guest-exit-${randomUUID()}`
  writeFileSync(join(scratch, 'command'), `cd ${quoted(process.cwd())}\n${command}\n`)
  writeFileSync(join(scratch, 'marker'), marker)
  addPrograms(scratch, machine)
  try {
    return await boot(machine, scratch, marker, options)
  } finally {
    rmSync(scratch, { recursive: true, force: true })
  }
}

export function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`
}

/** Adds the machine's own programs, with a modprobe that finds its modules. */
function addPrograms(scratch: string, { modules, programs = {} }: Machine): void {
  mkdirSync(join(scratch, 'lib'))
  symlinkSync(modules, join(scratch, 'lib', 'modules'))
  mkdirSync(join(scratch, 'bin'))
  const modprobe = `#!/bin/sh\nexec /sbin/modprobe -d ${quoted(scratch)} "$@"\n`
  for (const [name, content] of Object.entries({ modprobe, ...programs })) {
    const file = join(scratch, 'bin', name)
    if (content.startsWith('#!')) {
      writeFileSync(file, content)
      chmodSync(file, 0o755)
    } else symlinkSync(content, file)
  }
}

async function boot(
  machine: Machine,
  scratch: string,
  marker: string,
  options: GuestOptions,
): Promise<GuestResult> {
  const { timeoutMs = 1_200_000, onLine } = options
  const { file, args, env = {} } = machine.start(kernelWords(scratch), scratch)
  // The machine has a process group, because most kinds of machine are several processes.
  const child = spawn(file, args, {
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true,
    env: { ...process.env, PATH: `${process.env.PATH ?? ''}:/usr/sbin:/sbin`, ...env },
  })
  const lines: string[] = []
  // The console fills this in, but the compiler does not see it.
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
  for (const stream of [child.stdout, child.stderr]) {
    createInterface({ input: stream }).on('line', hear)
  }
  const wait = { isOver: false }
  const timer = setTimeout(() => {
    wait.isOver = true
    killGroup(child.pid)
  }, timeoutMs)
  const forgetSignals = dieWithUs(child.pid, scratch)
  const death = await new Promise<string>((resolve) => {
    child.on('error', (error) => resolve(error.message))
    child.on('close', (status, signal) => resolve(signal ?? `status ${status ?? '?'}`))
  })
  forgetSignals()
  clearTimeout(timer)
  killGroup(child.pid)
  if (end.code !== undefined) return { code: end.code, output: lines.slice(started).join('\n') }
  throw new GuestError(
    wait.isOver
      ? `${machine.name} did not end within ${timeoutMs} ms`
      : `${machine.name} died before the command had ended (${death})`,
    lines,
  )
}

/** The words for the kernel and the init script. */
function kernelWords(scratch: string): readonly string[] {
  return [
    `init=${guestInit}`,
    `guest_scratch=${scratch}`,
    'quiet',
    // IPVS writes to the console about every connection that it cannot place.
    'loglevel=2',
    // A panic or an oops ends the machine at once, so that the test fails and does not hang.
    'panic=-1',
    'oops=panic',
    // With mitigations each system call empties QEMU's table of memory, which it must fill again.
    'mitigations=off',
  ]
}

/** Ends the machine with the runner, whose signals do not reach the group of the machine. */
function dieWithUs(pid: number | undefined, scratch: string): () => void {
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const
  const onSignal = (signal: NodeJS.Signals) => {
    killGroup(pid)
    rmSync(scratch, { recursive: true, force: true })
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
    // Nothing of the group is left, which is fine.
  }
}
