import koffi from 'koffi'
import { closeSync, fstatSync, openSync, readSync, writeSync } from 'node:fs'
import { getSystemErrorName } from 'node:util'
import { endedAs, Starter, startProgramsQuickly } from '../../lib/kernel/posix-spawn.js'

// A fork copies the page tables of the whole test, which costs more than most of these programs do.
await startProgramsQuickly()

type Call = (...values: unknown[]) => number

const closeOnExec = 1
const interrupted = 4

/** Bound when it is first needed: other systems lack some of these. */
let bound: ReturnType<typeof bind> | undefined
const calls = () => (bound ??= bind())

function bind() {
  const library = koffi.load(null)
  const call = (prototype: string) => library.func(prototype) as Call
  return {
    starter: new Starter(koffi),
    waitpid: call('int waitpid(int, _Out_ int *, int)'),
    memoryFile: call('int memfd_create(const char *, unsigned int)'),
  }
}

export interface SyncOutput {
  /** Null when a signal ended it. */
  readonly status: number | null
  readonly stdout: string
  readonly stderr: string
}

/**
 * Runs a program in the network namespace of this thread, as `spawnSync` of Node does, but without
 * a fork of the test. Its streams are files in memory.
 */
export function runSync(file: string, args: readonly string[] = [], input = ''): SyncOutput {
  const opened: number[] = []
  try {
    const open = () => {
      const fd = calls().memoryFile(file, closeOnExec)
      if (fd < 0) throw new Error(`memfd_create ${getSystemErrorName(-koffi.errno())}`)
      opened.push(fd)
      return fd
    }
    const stdin = input === '' ? openSync('/dev/null', 'r') : open()
    if (input === '') opened.push(stdin)
    else writeSync(stdin, Buffer.from(input), 0, undefined, 0)
    const [stdout, stderr] = [open(), open()]
    const pid = calls().starter.spawn(file, args, process.env, [stdin, stdout, stderr])
    return { status: statusOf(pid), stdout: textOf(stdout), stderr: textOf(stderr) }
  } finally {
    opened.forEach(closeSync)
  }
}

/** What a program printed; throws when it fails. */
export function execSync(file: string, args: readonly string[] = [], input?: string): string {
  const { status, stdout, stderr } = runSync(file, args, input)
  if (status === 0) return stdout
  const message = `Command failed: ${[file, ...args].join(' ')}\n${stderr}`
  throw Object.assign(new Error(message), { status, stdout, stderr })
}

function statusOf(pid: number): number | null {
  const status = [0]
  while (calls().waitpid(pid, status, 0) < 0) {
    if (koffi.errno() !== interrupted) throw new Error(`waitpid ${koffi.errno()}`)
  }
  return endedAs(status[0] ?? 0).code
}

/** The program has moved the place where it writes, so this reads from the begin. */
function textOf(fd: number): string {
  const bytes = Buffer.alloc(fstatSync(fd).size)
  let read = 0
  while (read < bytes.length) read += readSync(fd, bytes, read, bytes.length - read, read)
  return bytes.toString()
}
