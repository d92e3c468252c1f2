import { existsSync } from 'node:fs'
import { Socket } from 'node:net'
import { constants } from 'node:os'
import { getSystemErrorName } from 'node:util'
import { isLinux } from '../platform.js'
import { asNodeCalls } from './sockets/libc.js'
import { startProgramsWith, type Ended, type Start, type StartedProgram } from './iptables/start.js'

/**
 * Starts programs by `posix_spawn` from now on, where this can be done. Node forks: the kernel
 * copies the page tables of this process while the thread that syncs waits, and each page that is
 * written afterwards costs a fault. That takes 1 to 5 ms, and this a fifth of one.
 */
export async function startProgramsQuickly(): Promise<void> {
  if (!isLinux()) return
  try {
    startProgramsWith(new Starter((await import('koffi')).default).start)
  } catch {
    // There is no koffi for this processor. Node's own way works, too.
  }
}

type Koffi = (typeof import('koffi'))['default']

/** The largest of these structures has 336 bytes, in glibc and in musl. */
const structBytes = 512
const setSignalDefaults = 4
const setSignalMask = 8
const localFamily = 1
const streamCloseOnExec = 1 | 0x80000
const doNotWait = 1
/** The number of the system call, on all processors. */
const pidfdOpen = 434

/** The descriptors that a program begins with: its input, its output and its complaints. */
const standardStreams = [0, 1, 2] as const

type Call = (...values: unknown[]) => number

/** What the C library does for this; results below 0 mean that `errno` tells why. */
function callsOf(koffi: Koffi) {
  const library = koffi.load(null)
  const call = (prototype: string) => library.func(prototype) as Call
  return {
    spawn: call(
      'int posix_spawn(_Out_ int *, const char *, void *, void *, const char **, const char **)',
    ),
    initActions: call('int posix_spawn_file_actions_init(void *)'),
    addDuplicate: call('int posix_spawn_file_actions_adddup2(void *, int, int)'),
    destroyActions: call('int posix_spawn_file_actions_destroy(void *)'),
    initAttributes: call('int posix_spawnattr_init(void *)'),
    setFlags: call('int posix_spawnattr_setflags(void *, short)'),
    setMask: call('int posix_spawnattr_setsigmask(void *, void *)'),
    setDefaults: call('int posix_spawnattr_setsigdefault(void *, void *)'),
    addSignal: call('int sigaddset(void *, int)'),
    socketpair: call('int socketpair(int, int, int, void *)'),
    close: call('int close(int)'),
    waitpid: call('int waitpid(int, _Out_ int *, int)'),
    systemCall: call('long syscall(long, int, unsigned int)'),
    errno: () => koffi.errno(),
    whenReadable: (fd: number, tell: () => void) =>
      koffi.node.poll(fd, { readable: true }, asNodeCalls(tell)),
  }
}

/** Starts programs in this process's network, and leaves no signal blocked or ignored in them. */
export class Starter {
  readonly #calls: ReturnType<typeof callsOf>
  readonly #attributes = new Uint8Array(structBytes)
  /** A watch that is garbage-collected stops. */
  readonly #watches = new Set<object>()

  /** Throws where the kernel cannot tell when a process ends; Linux can since 5.3. */
  constructor(koffi: Koffi) {
    this.#calls = callsOf(koffi)
    this.#closeAll([this.#watchable(process.pid)])
    this.#setSignals()
  }

  /** No signal is blocked, and none is ignored that Node ignores; a program would inherit this. */
  #setSignals(): void {
    const { initAttributes, addSignal, setMask, setDefaults, setFlags } = this.#calls
    const ignored = new Uint8Array(structBytes)
    for (const name of ['SIGPIPE', 'SIGXFSZ'] as const) addSignal(ignored, constants.signals[name])
    initAttributes(this.#attributes)
    setMask(this.#attributes, new Uint8Array(structBytes))
    setDefaults(this.#attributes, ignored)
    setFlags(this.#attributes, setSignalDefaults | setSignalMask)
  }

  readonly start: Start = (file, args, environment) => {
    const { ours, theirs } = this.#openStreams()
    let pid: number
    try {
      pid = this.spawn(file, args, environment, theirs)
    } catch (error) {
      this.#closeAll(ours)
      throw error
    } finally {
      this.#closeAll(theirs)
    }
    const [stdin, stdout, stderr] = ours.map(
      (fd, stream) => new Socket({ fd, readable: stream > 0, writable: stream === 0 }),
    )
    let open = 2
    const onEnd: StartedProgram['onEnd'] = (tell) => {
      for (const stream of [stdout, stderr]) {
        stream?.once('close', () => {
          if (--open === 0) this.#awaitEnd(pid, tell)
        })
      }
    }
    return { stdin, stdout, stderr, onEnd, kill: () => process.kill(pid, 'SIGKILL') }
  }

  /** The id of the process, which gets these descriptors as its standard streams. */
  spawn(...[file, args, environment, streams]: [...Parameters<Start>, readonly number[]]): number {
    const argv = [file, ...args]
    const variables = Object.entries(environment).flatMap(([name, value]) =>
      value === undefined ? [] : [`${name}=${value}`],
    )
    // The C library would end a text at its zero byte.
    if ([...argv, ...variables].some((text) => text.includes('\0'))) {
      throw new TypeError('an argument or a variable has a zero byte')
    }
    const path = pathOf(file, environment.PATH ?? '')
    const { initActions, addDuplicate, spawn, destroyActions } = this.#calls
    const actions = new Uint8Array(structBytes)
    initActions(actions)
    for (const stream of standardStreams) addDuplicate(actions, streams[stream], stream)
    const pid = [0]
    const words = [
      [...argv, null],
      [...variables, null],
    ]
    const error = spawn(pid, path, actions, this.#attributes, ...words)
    destroyActions(actions)
    if (error !== 0) throw systemError(`spawn ${path}`, error)
    return pid[0] ?? 0
  }

  #openStreams() {
    const ours: number[] = []
    const theirs: number[] = []
    while (ours.length < standardStreams.length) {
      const pair = new Int32Array(2)
      if (this.#calls.socketpair(localFamily, streamCloseOnExec, 0, pair) !== 0) {
        const error = systemError('socketpair', this.#calls.errno())
        this.#closeAll([...ours, ...theirs])
        throw error
      }
      const [here = -1, there = -1] = pair
      ours.push(here)
      theirs.push(there)
    }
    return { ours, theirs }
  }

  /** The program has closed its streams: it has ended, or does so in a moment. */
  #awaitEnd(pid: number, tell: (ended: Ended) => void): void {
    const status = [0]
    const hasEnded = () => {
      const found = this.#calls.waitpid(pid, status, doNotWait)
      if (found === 0) return false
      tell(found === pid ? endedAs(status[0] ?? 0) : { code: null, signal: 'unknown' })
      return true
    }
    if (hasEnded()) return
    try {
      const fd = this.#watchable(pid)
      const watch = this.#calls.whenReadable(fd, () => {
        if (!hasEnded()) return
        this.#watches.delete(watch)
        watch.close()
        this.#closeAll([fd])
      })
      this.#watches.add(watch)
    } catch {
      // No descriptor is left.
      setTimeout(() => this.#awaitEnd(pid, tell), 10)
    }
  }

  /** A descriptor that can be read once the process has ended. */
  #watchable(pid: number): number {
    const fd = this.#calls.systemCall(pidfdOpen, pid, 0)
    if (fd < 0) throw systemError('pidfd_open', this.#calls.errno())
    return fd
  }

  #closeAll(fds: readonly number[]): void {
    for (const fd of fds) this.#calls.close(fd)
  }
}

/** Where a program is, as a shell would look for it; the current folder is never searched. */
function pathOf(file: string, searchPath: string): string {
  if (file.includes('/')) return file
  const folders = searchPath.split(':').filter((folder) => folder !== '')
  const found = folders.map((folder) => `${folder}/${file}`).find((path) => existsSync(path))
  if (found === undefined) throw systemError(`spawn ${file}`, constants.errno.ENOENT)
  return found
}

function systemError(what: string, errno: number): Error {
  const code = getSystemErrorName(-errno)
  return Object.assign(new Error(`${what} ${code}`), { code })
}

/** What a status of `waitpid` says. */
export function endedAs(status: number): Ended {
  const number = status & 0x7f
  if (number === 0) return { code: (status >> 8) & 0xff, signal: null }
  const [signal] = Object.entries(constants.signals).find(([, value]) => value === number) ?? []
  return { code: null, signal: signal ?? String(number) }
}
