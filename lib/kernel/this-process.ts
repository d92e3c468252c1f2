import { readFileSync } from 'node:fs'
import { ifPossible } from '../errors.js'
import { systemHere } from '../platform.js'

/** The limit where none can be read. On Windows only memory limits the number of sockets. */
const unknownLimit = systemHere() === 'win32' ? 2 ** 20 : 1024

/** How many files this process may open. Node raises its soft limit to the hard one at its start. */
export function openFilesLimit(limits = readLimits()): number {
  const soft = /^Max open files\s+(\d+|unlimited)/m.exec(limits)?.[1]
  return soft === 'unlimited' ? 2 ** 30 : Number(soft ?? unknownLimit)
}

/** How many connections a server that is not the purpose of this process may hold. */
export function clientLimit(most: number): number {
  return Math.max(Math.min(most, Math.floor(openFilesLimit() / 16)), 4)
}

const readLimits = () => ifPossible(() => readFileSync('/proc/self/limits', 'utf8')) ?? ''

/** CLOCK_THREAD_CPUTIME_ID of Linux. */
const thisThread = 3
/** RUSAGE_CHILDREN of Linux. */
const endedPrograms = -1
/** `struct rusage` has 18 numbers; the first four are seconds and microseconds of both times. */
const usageNumbers = 18

/**
 * Tells the processor time that syncs have taken so far, in ms: of the thread that calls, and of the
 * programs that this process started and that have ended. Undefined where the kernel does not tell
 * it. Two system calls, because reading the same from /proc takes ten times as long, twice a sync.
 */
export async function openProcessorClock(): Promise<() => number | undefined> {
  try {
    const { default: koffi } = await import('koffi')
    const library = koffi.load(null)
    const clockOf = library.func('int clock_gettime(int, void *)')
    const usageOf = library.func('int getrusage(int, void *)')
    const Longs = koffi.sizeof('long') === 8 ? BigInt64Array : Int32Array
    const time = new Longs(2)
    const usage = new Longs(usageNumbers)
    return () => {
      if (clockOf(thisThread, time) !== 0 || usageOf(endedPrograms, usage) !== 0) return undefined
      const [seconds = 0, nanoseconds = 0] = time
      const [user = 0, userRest = 0, system = 0, systemRest = 0] = usage
      return (
        (Number(seconds) + Number(user) + Number(system)) * 1000 +
        (Number(userRest) + Number(systemRest)) / 1000 +
        Number(nanoseconds) / 1e6
      )
    }
  } catch {
    // Another operating system, or no koffi for this processor.
    return () => undefined
  }
}

/** What Node calls a request to its threads for a file or an address of a name, and a worker. */
const atThread = /^(?:FSReq|GetAddrInfoReq|MessagePort)/

/**
 * Lets this process end at once. By itself Node waits for its threads, also for one that looks up a
 * name or reads a file. That takes seconds where no DNS server answers. And a worker that it stops
 * in a callback of koffi aborts the process. If there is no such thread, the process ends as any
 * other, and Node writes what it was asked for, such as `--cpu-prof`.
 */
export async function endWithoutThreads(): Promise<void> {
  if (systemHere() !== 'linux') return
  try {
    const { default: koffi } = await import('koffi')
    const end = koffi.load(null).func('void _exit(int)')
    process.on('exit', (exitCode) => {
      if (process.getActiveResourcesInfo().some((name) => atThread.test(name))) end(exitCode)
    })
  } catch {
    // There is no koffi for this processor. The end waits.
  }
}
