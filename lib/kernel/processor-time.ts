import { readFileSync } from 'node:fs'

/** Linux counts the time of programs in hundredths of a second. */
const tickMs = 10
/**
 * Indexes of the words after the name in `stat`: user and system time of programs that have ended.
 */
const endedPrograms = [13, 14] as const

const self = '/proc/self'

/** What work beside the syncs has taken. Its time is no cost of the sync that runs meanwhile. */
let besideMs = 0
/** The time of ended programs when the last one ended. */
let endedMs = programsMs(self)

/**
 * The processor time that syncs have taken so far, in ms: of the first thread of this process, and
 * of the programs that it started and that have ended. Undefined where the kernel does not tell it.
 */
export function processorMs(from = self): number | undefined {
  const ms = threadMs(from) + programsMs(from)
  return Number.isFinite(ms) ? ms - besideMs : undefined
}

/** Does work of this thread that belongs to no sync. */
export function besideSyncs<T>(work: () => T): T {
  const before = threadMs(self)
  try {
    return work()
  } finally {
    leaveOut(threadMs(self) - before)
  }
}

/** Told of the end of every program, so that the time of each is known. */
export function programEnded(isBesideSyncs: boolean): void {
  const ms = programsMs(self)
  if (isBesideSyncs) leaveOut(ms - endedMs)
  endedMs = ms
}

function leaveOut(ms: number): void {
  if (Number.isFinite(ms)) besideMs += ms
}

/** NaN for a kernel without CONFIG_SCHED_INFO, a hidden /proc, or another operating system. */
function threadMs(from: string): number {
  // The kernel brings the time of a running thread up to date when it is asked for all threads.
  process.cpuUsage()
  const [thread = ''] = textOf(`${from}/schedstat`).split(' ')
  return thread === '' ? NaN : Number(thread) / 1e6
}

function programsMs(from: string): number {
  const stat = textOf(`${from}/stat`)
  const words = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return endedPrograms.reduce((sum, at) => sum + Number(words[at] ?? NaN), 0) * tickMs
}

function textOf(file: string): string {
  try {
    return readFileSync(file, 'latin1')
  } catch {
    return ''
  }
}
