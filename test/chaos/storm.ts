import { setTimeout as delay } from 'node:timers/promises'
import type { ModeName } from '../../lib/config/config.js'
import { messageOf } from '../../lib/errors.js'
import { families, type Place } from '../../lib/lab/world/topology.js'
import { filler, fillerAddress } from './cluster.js'
import { pick, playsIn, randomOf, type Fault, type FaultGroup } from './fault.js'
import { Stage } from './stage.js'

/** Everything at once: changes, faults at random, several at a time; then kernel and plan are equal. */

const services = 200
const changesPerSecond = 20
const pods = ['pod-1', 'pod-2', 'pod-3', 'pod-4', 'pod-5'] as const
const longestPauseMs = 3_000

interface StormOptions {
  readonly mode: ModeName
  readonly minutes: number
  readonly seed: number
  readonly groups: readonly FaultGroup[]
}

export async function storm({
  mode,
  minutes,
  seed,
  groups,
}: StormOptions): Promise<readonly string[]> {
  const random = randomOf(seed)
  const stage = await Stage.open({ mode, services, random })
  try {
    const end = performance.now() + minutes * 60_000
    const isOver = () => performance.now() > end
    const expected = new Map<number, readonly Place[]>()
    for (let index = 0; index < services; index++) expected.set(index, ['pod-1'])
    const lanes = (['node', 'api'] as const).map((lane) =>
      groups.flatMap((group) => (group.lane === lane ? group.faults : [])),
    )
    const mixed = lanes.map((faults) =>
      faults.filter((fault) => playsIn(fault, mode) && fault.stage === undefined),
    )
    const [changes, ...played] = await Promise.all([
      churn(stage, expected, isOver),
      ...mixed.map((faults) => raise(stage, faults, isOver)),
    ])
    await stage.recovered(performance.now())
    const { fresh, open } = stage.traffic.take()
    console.log(
      `${mode}: ${minutes} minutes, ${changes} changes, ${played.flat().length} faults; ` +
        `${fresh.lost} of ${fresh.tried} new and ${open.lost} of ${open.tried} open connections lost`,
    )
    const differences = await stage.differences()
    return [
      ...(differences === '' ? [] : [`${mode}: kernel and plan differ: ${differences}`]),
      ...(await unreached(stage, expected)).map((text) => `${mode}: ${text}`),
    ]
  } catch (error) {
    return [`${mode}: ${messageOf(error)}\n${stage.daemon.output().slice(-4_000)}`]
  } finally {
    await stage.close()
  }
}

/** Faults, one after the other, in random order and distance; their names. */
async function raise(
  stage: Stage,
  faults: readonly Fault[],
  isOver: () => boolean,
): Promise<readonly string[]> {
  const played: string[] = []
  while (faults.length > 0 && !isOver()) {
    const fault = pick(faults, stage.random)
    console.log(`${new Date().toISOString()} ${stage.mode}: ${fault.name}`)
    const mend = await fault.inject(stage)
    await delay(stage.random() * longestPauseMs)
    await mend?.()
    await delay(stage.random() * longestPauseMs)
    played.push(fault.name)
  }
  return played
}

/** Services get other endpoints, lose all, go and come back; how many changes were made. */
async function churn(
  { api, random }: Stage,
  expected: Map<number, readonly Place[]>,
  isOver: () => boolean,
): Promise<number> {
  let changes = 0
  for (let next = performance.now(); !isOver(); next += 1_000 / changesPerSecond) {
    const index = Math.floor(random() * services)
    const isRemoved = random() < 0.1
    const some = pods.filter(() => random() < 0.4)
    if (isRemoved) expected.delete(index)
    else expected.set(index, some)
    const objects = filler(index, some)
    // While the server is away nothing arrives there; the next one begins with these objects.
    await (isRemoved ? api.remove(...objects) : api.put(...objects)).catch(() => undefined)
    changes++
    await delay(Math.max(0, next - performance.now()))
  }
  return changes
}

/** Each Service answers with each of its endpoints' names, or refuses without any. */
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
