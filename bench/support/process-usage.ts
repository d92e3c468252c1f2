import { readdirSync, readFileSync } from 'node:fs'

/** CPU milliseconds a process has used, all its threads and the programs it has run together. */
export function cpuMilliseconds(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ') ?? []
  const ticks = fields.slice(11, 15).map(Number)
  return ticks.reduce((sum, value) => sum + value, 0) * 10
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
