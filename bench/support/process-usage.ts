import { readdirSync, readFileSync } from 'node:fs'

/**
 * CPU milliseconds a process has used: all its threads, and programs that have ended or still run.
 * Throws if it has ended itself.
 */
export function cpuMilliseconds(pid: number): number {
  const ticks = statOf(pid).slice(11, 15).map(Number)
  const own = ticks.reduce((sum, value) => sum + value, 0) * 10
  const running = childrenOf(pid).map((child) => whileItRuns(() => cpuMilliseconds(child)) ?? 0)
  return running.reduce((sum, value) => sum + value, own)
}

function childrenOf(pid: number): readonly number[] {
  const processes = readdirSync('/proc').map(Number).filter(Boolean)
  return processes.filter((each) => whileItRuns(() => Number(statOf(each)[1])) === pid)
}

/** From the third field on. */
function statOf(pid: number): readonly string[] {
  return readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1)?.split(' ') ?? []
}

/** Undefined if the process ends first. */
function whileItRuns<T>(work: () => T): T | undefined {
  try {
    return work()
  } catch {
    return undefined
  }
}

export function residentMib(pid: number): number {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8')
  return Number(/^VmRSS:\s+(\d+) kB/m.exec(status)?.[1] ?? NaN) / 1024
}

/** What no other process shares. */
export function privateMib(pid: number): number {
  const maps = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8')
  const parts = Array.from(maps.matchAll(/^Private_\w+:\s+(\d+) kB/gm), ([, kib]) => Number(kib))
  return parts.reduce((sum, kib) => sum + kib, 0) / 1024
}

export function openDescriptors(pid: number): number {
  return readdirSync(`/proc/${pid}/fd`).length
}
