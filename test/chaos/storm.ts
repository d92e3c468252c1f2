import { setTimeout as delay } from 'node:timers/promises'
import { residentMib } from '../../bench/support/process-usage.js'
import type { ModeName } from '../../lib/config/config.js'
import { messageOf } from '../../lib/errors.js'
import { families, type Place } from '../../lib/lab/world/topology.js'
import { filler, fillerAddress } from './cluster.js'
import { pick, playsIn, randomOf, targetOf, type Fault, type FaultGroup } from './fault.js'
import { missed } from './play.js'
import { Stage } from './stage.js'

/** Makes changes and random faults at once. Afterwards kernel and plan must be equal. */

const services = 200
const pods = ['pod-1', 'pod-2', 'pod-3', 'pod-4', 'pod-5'] as const
const longestPauseMs = 3_000

interface StormOptions {
  readonly mode: ModeName
  readonly minutes: number
  /** How many Services change each second. */
  readonly changes: number
  readonly seed: number
  readonly groups: readonly FaultGroup[]
}

export async function storm({
  mode,
  minutes,
  changes,
  seed,
  groups,
}: StormOptions): Promise<readonly string[]> {
  const stage = await Stage.open({ mode, services, random: randomOf(seed) })
  const done: Done = { changes: 0, faults: 0, now: new Set(), memory: [] }
  try {
    const expected = new Map<number, readonly Place[]>()
    for (let index = 0; index < services; index++) expected.set(index, ['pod-1'])
    const lanes = (['node', 'api'] as const).map((lane) =>
      groups.flatMap((group) => (group.lane === lane ? group.faults : [])),
    )
    const mixed = lanes.map((faults) =>
      faults.filter((fault) => playsIn(fault, mode) && fault.stage === undefined),
    )
    const all = { stage, done, signal: AbortSignal.timeout(minutes * 60_000) }
    // Losses before the first sync do not count.
    stage.traffic.take()
    // The first failure ends the run, without waiting for the other parts.
    await Promise.all([
      churn({ ...all, random: randomOf(seed), expected, changes }),
      watchMemory(all, minutes),
      // Each part has its own random numbers, so that its choices do not depend on the other parts.
      ...mixed.map((faults, lane) => raise({ ...all, random: randomOf(seed + lane + 1) }, faults)),
    ])
    await stage.recovered(performance.now())
    const tally = stage.traffic.take()
    const { fresh, open } = tally
    console.log(
      `${mode}: ${minutes} minutes, ${done.changes} changes, ${done.faults} faults; ` +
        `${fresh.lost} of ${fresh.tried} new and ${open.lost} of ${open.tried} open connections lost; ` +
        memoryText(done.memory),
    )
    const differences = await stage.differences()
    const promised = (what: 'fresh' | 'open') =>
      mixed.flat().some((fault) => targetOf(fault, mode)[what] !== 'nothing')
        ? 'until repaired'
        : 'nothing'
    return [
      ...missed(`${mode}: new`, fresh, promised('fresh'), tally),
      ...missed(`${mode}: open`, open, promised('open'), tally),
      ...(differences === '' ? [] : [`${mode}: kernel and plan differ: ${differences}`]),
      ...(await unreached(stage, expected)).map((text) => `${mode}: ${text}`),
    ]
  } catch (error) {
    const daemon = stage.daemon.latest.isRunning() ? 'the daemon runs' : 'the daemon has ended'
    const during = `during ${[...done.now].join(' and ') || 'no fault'}; ${daemon}`
    return [`${mode}: ${messageOf(error)}; ${during}\n${stage.daemon.output().slice(-4_000)}`]
  } finally {
    await stage.close()
  }
}

interface Done {
  changes: number
  faults: number
  /** The faults that are on. */
  readonly now: Set<string>
  /** By quarter of the time. Caches fill in the first one. */
  readonly memory: Lowest[]
}

interface Lowest {
  readonly pid: number
  readonly mib: number
}

interface Part {
  readonly stage: Stage
  readonly random: () => number
  readonly done: Done
  readonly signal: AbortSignal
}

/** Injects faults one after the other, in random order and after random pauses. */
async function raise(
  { stage, random, done, signal }: Part,
  faults: readonly Fault[],
): Promise<void> {
  while (faults.length > 0 && !signal.aborted) {
    const fault = pick(faults, random)
    console.log(`${new Date().toISOString()} ${stage.mode}: ${fault.name}`)
    done.now.add(fault.name)
    const mend = await fault.inject(stage)
    await delay(random() * longestPauseMs)
    await mend?.()
    done.now.delete(fault.name)
    await delay(random() * longestPauseMs)
    done.faults++
  }
}

interface Churn extends Part {
  readonly expected: Map<number, readonly Place[]>
  readonly changes: number
}

/** Changes Services: they get other endpoints, lose all, go and come back. */
async function churn({
  stage: { api },
  random,
  done,
  signal,
  expected,
  changes,
}: Churn): Promise<void> {
  for (let next = performance.now(); !signal.aborted; next += 1_000 / changes) {
    const index = Math.floor(random() * services)
    const isRemoved = random() < 0.1
    const some = pods.filter(() => random() < 0.4)
    if (isRemoved) expected.delete(index)
    else expected.set(index, some)
    const objects = filler(index, some)
    await (isRemoved ? api.remove(...objects) : api.put(...objects))
    done.changes++
    await delay(Math.max(0, next - performance.now()))
  }
}

/**
 * Keeps the lowest memory of each quarter of the time. Garbage goes up and down by half of the
 * memory, so a look at one moment tells nothing.
 */
async function watchMemory(
  { stage, done, signal }: Omit<Part, 'random'>,
  minutes: number,
): Promise<void> {
  for (let second = 0; !signal.aborted; second++) {
    const { pid, latest } = stage.daemon
    const quarter = Math.floor(second / (minutes * 15))
    const before = done.memory[quarter]
    const mib = latest.isRunning() ? residentMib(pid) : NaN
    if (mib > 0) {
      done.memory[quarter] = { pid, mib: before?.pid === pid ? Math.min(mib, before.mib) : mib }
    }
    await delay(1_000, undefined, { signal }).catch(() => undefined)
  }
}

function memoryText(memory: Done['memory']): string {
  const [, second, , last] = memory
  const text = (lowest: Lowest | undefined) => `${lowest?.mib.toFixed(0) ?? '?'} MiB`
  return second?.pid === last?.pid
    ? `lowest memory ${text(second)} in the second quarter, ${text(last)} in the last`
    : `lowest memory ${text(last)} in the last quarter, of a proxy that was started meanwhile`
}

/** The Services that do not answer with the name of each endpoint, or do not refuse without any. */
async function unreached(
  { world }: Stage,
  expected: ReadonlyMap<number, readonly Place[]>,
): Promise<readonly string[]> {
  const wrong: string[] = []
  for (const [index, places] of expected) {
    for (const family of families) {
      const request = { protocol: 'TCP', host: fillerAddress(index)[family], port: 80 } as const
      const [result] = await world.agent('client-pod').flow(request)
      const isRight =
        places.length === 0
          ? result?.outcome === 'refused'
          : places.some((place) => place === result?.backend)
      const seen = result?.backend ?? result?.outcome ?? 'nothing'
      const wanted = places.join(' or ') || 'refused'
      if (!isRight) wrong.push(`Service ${index} by ${family}: ${seen} instead of ${wanted}`)
    }
  }
  return wrong
}
