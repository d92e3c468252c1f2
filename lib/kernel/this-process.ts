import { openSync, readFileSync, readSync } from 'node:fs'
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

function readLimits(): string {
  try {
    return readFileSync('/proc/self/limits', 'utf8')
  } catch {
    return ''
  }
}

/** Linux counts the time of programs in hundredths of a second. */
const tickMs = 10
/**
 * Indexes of the words after the name in `stat`: user and system time of programs that have ended.
 */
const endedPrograms = [13, 14] as const

/**
 * Tells the processor time that syncs have taken so far, in ms: of the first thread of this process,
 * and of the programs that it started and that have ended. Undefined where the kernel does not tell
 * it. The files stay open, because this is asked twice for each sync.
 */
export function processorClock(from = '/proc/self'): () => number | undefined {
  const schedstat = new KeptFile(`${from}/schedstat`)
  const stat = new KeptFile(`${from}/stat`)
  return () => {
    try {
      // The kernel brings the time of a running thread up to date when it is asked for all threads.
      process.cpuUsage()
      const [thread = ''] = schedstat.read().split(' ', 1)
      const line = stat.read()
      const words = line.slice(line.lastIndexOf(')') + 2).split(' ', endedPrograms[1] + 1)
      const ticks = endedPrograms.reduce((sum, at) => sum + Number(words[at] ?? NaN), 0)
      const ms = (thread === '' ? NaN : Number(thread)) / 1e6 + ticks * tickMs
      return Number.isFinite(ms) ? ms : undefined
    } catch {
      // A kernel without CONFIG_SCHED_INFO, a hidden /proc, or another operating system.
      return undefined
    }
  }
}

/** A short file of the kernel that is read again and again. */
class KeptFile {
  readonly #path: string
  readonly #buffer = Buffer.alloc(1024)
  #fd: number | undefined

  constructor(path: string) {
    this.#path = path
  }

  read(): string {
    this.#fd ??= openSync(this.#path, 'r')
    const length = readSync(this.#fd, this.#buffer, { position: 0 })
    return this.#buffer.toString('latin1', 0, length)
  }
}
