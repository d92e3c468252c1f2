import { setTimeout as delay } from 'node:timers/promises'
import { keepChanging } from '../../lib/lab/apiserver/load.js'
import { answers, moveProbe, type BenchCluster } from './bench-cluster.js'
import { cpuMilliseconds, residentMib } from './process-usage.js'
import type { ChangeCosts } from './change-costs.js'
import { summarize } from './summary.js'

/** A proxy that runs on the node of the cluster. */
export interface Running {
  readonly pid: number
  readonly isAlive: () => boolean
}

export interface BusyTask {
  readonly services: number
  /** Slices that change a second, beside those that are watched. */
  readonly perSecond: number
  readonly seconds: number
  /** The pause between the arrival of a change and the next change. */
  readonly restMs: number
}

/** The numbers of a proxy while many slices change. */
export interface BusyCosts {
  readonly p50Ms: number
  readonly p99Ms: number
  /** The longest time that connections still reached a removed endpoint. */
  readonly longestMs: number
  /** Of one core, in percent, with the programs that the proxy starts. */
  readonly cpuShare: number
  /** CPU time of one change, of those of the probe and of the others. */
  readonly cpuMs: number
  /** The memory at the end, divided by the memory after a quarter of the time. */
  readonly growth: number
}

/** Keeps slices changing, and measures one Service meanwhile. A text says why that failed. */
export async function busy(
  cluster: BenchCluster,
  { pid, isAlive }: Running,
  { services, perSecond, seconds, restMs }: BusyTask,
): Promise<BusyCosts | string> {
  const stop = new AbortController()
  const load = { services, endpoints: 10 }
  const others = keepChanging(cluster.api, load, { perSecond }, stop.signal)
  const began = performance.now()
  const cpuBefore = cpuMilliseconds(pid)
  const times: number[] = []
  const memory: number[] = []
  try {
    const elapsed = () => (performance.now() - began) / 1000
    // At least one change, also where this thread has waited for a processor all the time.
    do {
      await delay(restMs * (0.5 + Math.random()))
      if (memory.length === 0 && elapsed() > seconds / 4) memory.push(residentMib(pid))
      const target = times.length % 2 === 0 ? 'pod-2' : 'pod-1'
      const changed = performance.now()
      moveProbe(cluster.api, target)
      if (!(await answers(cluster.world, target, isAlive))) {
        return `among ${perSecond} changes a second, one did not arrive`
      }
      times.push(performance.now() - changed)
    } while (elapsed() < seconds)
    const cpu = cpuMilliseconds(pid) - cpuBefore
    const took = elapsed()
    const cpuShare = cpu / took / 10
    stop.abort()
    const made = await others
    if (made < 0.95 * perSecond * took) {
      console.log(`# only ${Math.round(made / took)} of ${perSecond} changes a second were made`)
    }
    const cpuMs = cpu / (made + times.length)
    const growth = residentMib(pid) / (memory[0] ?? NaN)
    const longestMs = Math.max(...times)
    const { p50, p99 } = summarize(times)
    return { p50Ms: p50, p99Ms: p99, longestMs, cpuShare, cpuMs, growth }
  } finally {
    stop.abort()
    await others
    // The next measurement expects the probe at this pod.
    moveProbe(cluster.api, 'pod-1')
  }
}

/** Measures changes while nothing else changes. */
export async function oneByOne(
  { world, api }: BenchCluster,
  { pid, isAlive }: Running,
  { changes, restMs }: { readonly changes: number; readonly restMs: number },
): Promise<Omit<ChangeCosts, 'startMs'> | string> {
  const before = cpuMilliseconds(pid)
  const times: number[] = []
  for (let change = 0; change < changes; change++) {
    const target = change % 2 === 0 ? 'pod-2' : 'pod-1'
    const changed = performance.now()
    moveProbe(api, target)
    if (!(await answers(world, target, isAlive))) return `change ${change + 1} did not arrive`
    times.push(performance.now() - changed)
    await delay(restMs)
  }
  const { p50: p50Ms, p99: p99Ms } = summarize(times)
  const cpuMs = (cpuMilliseconds(pid) - before) / changes
  return { p50Ms, p99Ms, cpuMs, memoryMib: residentMib(pid) }
}
