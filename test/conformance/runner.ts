import { setTimeout as sleep } from 'node:timers/promises'
import { messageOf } from '../../lib/errors.js'
import type { World } from '../../lib/lab/world/world.js'
import type { CaseWorld } from './case-world.js'
import type { Case, Flow, ServiceRange, Step } from './case.js'
import { CaseServices } from './case-services.js'
import { expandFlow, patience, runCheck, runThroughout, type Expected } from './flows.js'
import { flushRules } from './flush.js'
import type { Check, FlowMemory } from './flows.js'
import type { Skip } from './mode-profiles.js'
import { nodeManifest, serviceCidrManifest } from './cluster-objects.js'
import { idOf, serviceManifest, sliceManifests } from './objects.js'
import type { CaseService, Manifest } from './objects.js'
import type { Subject } from './subject.js'

export interface CaseResult {
  readonly topic: string
  readonly name: string
  readonly outcome: 'passed' | 'failed' | 'skipped'
  readonly checks: number
  /** Each names the step, the flow, and what was wrong. */
  readonly failures: readonly string[]
  /** Reasons why flows were left out, without repeats. */
  readonly skipped: readonly string[]
  readonly durationMs: number
}

export interface RunOptions<Where extends CaseWorld = World> extends Expected {
  readonly world: Where
  readonly subject: Subject<Where>
  readonly cases: readonly Case[]
  readonly skips: readonly Skip[]
  readonly onResult?: (result: CaseResult) => void
}

/** How many checks run at once. With more, packets on a slow machine come too late. */
const parallelChecks = 8

/** Runs cases one after the other in one world. The subject restarts only for other settings. */
export async function runCases<Where extends CaseWorld>(
  options: RunOptions<Where>,
): Promise<readonly CaseResult[]> {
  const run = new Run(options)
  const results: CaseResult[] = []
  // Cases with the same settings run in a row, so that the proxy starts few times.
  const bySettings = new Map<string, Case[]>()
  for (const each of options.cases) {
    const key = JSON.stringify(each.settings)
    bySettings.set(key, [...(bySettings.get(key) ?? []), each])
  }
  try {
    for (const cases of bySettings.values()) {
      for (const each of cases) {
        const result = await run.case(each)
        results.push(result)
        options.onResult?.(result)
      }
    }
  } finally {
    await options.subject.stop()
  }
  return results
}

/** The parts of a case besides Services. */
interface Cluster {
  readonly zone: string | null
  readonly serviceCidrs: readonly ServiceRange[]
}

const initialCluster: Cluster = { zone: null, serviceCidrs: ['first'] }

/** The objects by `idOf`. */
type Objects = ReadonlyMap<string, Manifest>

function objectsOf(services: readonly CaseService[], cluster: Cluster): Objects {
  const manifests = [
    nodeManifest(cluster.zone),
    ...cluster.serviceCidrs.map(serviceCidrManifest),
    ...services.flatMap((service) => [serviceManifest(service), ...sliceManifests(service)]),
  ]
  return new Map(manifests.map((manifest) => [idOf(manifest), manifest]))
}

/**
 * The time for a reply where the same is asked again. Nobody answers a packet that went to an
 * endpoint that is gone, so the first time is short. It doubles, because a busy machine is slow.
 * TCP repeats its first packet after 1, 3 and 7 s.
 */
const soonMs = { first: 1000 * patience, longest: 12_000 * patience }

/** A check and what was wrong. */
type CheckResult = readonly [Check, readonly string[]]

class Run<Where extends CaseWorld> {
  readonly #options: RunOptions<Where>
  /** The objects that the subject has. */
  #applied: Objects = new Map()
  #settings: string | undefined
  #serial = 0

  constructor(options: RunOptions<Where>) {
    this.#options = options
  }

  async case(each: Case): Promise<CaseResult> {
    const started = performance.now()
    const outcome = { failures: [] as string[], skipped: new Set<string>(), checks: 0 }
    try {
      await this.#steps(each, outcome)
    } catch (error) {
      outcome.failures.push(messageOf(error))
      // The state of the subject is unknown now, so the next case gets a new one.
      await this.#options.subject.stop()
      this.#settings = undefined
    }
    const { failures, skipped, checks } = outcome
    return {
      topic: each.topic,
      name: each.name,
      outcome: failures.length > 0 ? 'failed' : checks === 0 ? 'skipped' : 'passed',
      checks,
      failures,
      skipped: [...skipped],
      durationMs: performance.now() - started,
    }
  }

  async #steps(
    each: Case,
    outcome: { failures: string[]; skipped: Set<string>; checks: number },
  ): Promise<void> {
    const services = new CaseServices(() => this.#serial++)
    const memory: FlowMemory = { sticky: new Map(), kept: new Map(), moved: new Set() }
    let cluster = initialCluster
    if (this.#plan(each, outcome.skipped).every((checks) => checks.length === 0)) return
    await this.#start(each)
    for (const [index, step] of each.steps.entries()) {
      const title = step.title === '' ? `step ${index + 1}` : step.title
      const fail = (check: Check, problem: string) =>
        outcome.failures.push(`${title}: ${check.label}: ${problem}`)
      const meanwhile = this.#startMeanwhile(step, services.known(), outcome.skipped)
      if (step.flush) await flushRules(this.#options.world)
      if (step.zone !== undefined) cluster = { ...cluster, zone: step.zone }
      if (step.serviceCidrs) cluster = { ...cluster, serviceCidrs: step.serviceCidrs }
      services.take(step)
      const objects = objectsOf(services.present(), cluster)
      if (step.restart) await this.#restart(each, objects)
      else await this.#apply(objects)
      const disturbed = await meanwhile.stop()
      const { world } = this.#options
      if (world.pass) world.pass(step.waitMs)
      else if (step.waitMs > 0) await sleep(step.waitMs)
      const checks = this.#checks(step.flows, services.known(), outcome.skipped)
      outcome.checks += checks.length + disturbed.length
      for (const [check, problems] of [
        ...disturbed,
        ...(await this.#runChecksWithin(checks, memory, step.withinMs)),
      ]) {
        for (const problem of problems) fail(check, problem)
      }
      for (const flow of new Set(checks.map((check) => check.flow))) {
        if (flow.sticky === 'some-moved' && !memory.moved.has(flow)) {
          outcome.failures.push(`${title}: every client met the backend it had before`)
        }
      }
    }
    for (const [id, { client }] of memory.kept) {
      await this.#options.world.agent(client.place).forget(id)
    }
    const takeAway = () => this.#apply(objectsOf([], initialCluster))
    // After a flush one sync may fail, because its rules are gone. The next one writes everything.
    await (each.steps.some(({ flush }) => flush) ? takeAway().catch(takeAway) : takeAway())
  }

  /** The checks of every step, to see before a run whether anything is left to check. */
  #plan(each: Case, skipped: Set<string>): readonly (readonly Check[])[] {
    let serial = 0
    const services = new CaseServices(() => serial++)
    return each.steps.map((step) => {
      services.take(step)
      return this.#checks([...step.meanwhile, ...step.flows], services.known(), skipped)
    })
  }

  #checks(
    flows: readonly Flow[],
    services: ReadonlyMap<string, CaseService>,
    skipped: Set<string>,
  ): readonly Check[] {
    const { skips } = this.#options
    return flows
      .flatMap((flow) => expandFlow(flow, services, this.#options))
      .flatMap((check) => {
        const skip = skips.find(({ flows }) => flows(check))
        if (!skip) return [check]
        skipped.add(skip.reason)
        return skip.instead ? [{ ...check, ...skip.instead }] : []
      })
  }

  /** Starts the flows that the step must not disturb. */
  #startMeanwhile(
    { meanwhile }: Step,
    services: ReadonlyMap<string, CaseService>,
    skipped: Set<string>,
  ): { stop(): Promise<readonly CheckResult[]> } {
    let isStopped = false
    const running = this.#checks(meanwhile, services, skipped).map(
      async (check): Promise<CheckResult> => [
        check,
        await runThroughout(this.#options.world, check, () => isStopped),
      ],
    )
    return {
      stop: () => {
        isStopped = true
        return Promise.all(running)
      },
    }
  }

  /** Repeats until all checks pass or the time is over. */
  async #runChecksWithin(
    checks: readonly Check[],
    memory: FlowMemory,
    withinMs: number,
  ): Promise<readonly CheckResult[]> {
    const deadline = performance.now() + withinMs * patience
    for (let ms = soonMs.first; ; ms = Math.min(ms * 2, soonMs.longest)) {
      const impatient = (check: Check) => ({ ...check, replyMs: Math.min(check.replyMs, ms) })
      const results = await this.#runChecks(withinMs > 0 ? checks.map(impatient) : checks, memory)
      const isRight = results.every(([, problems]) => problems.length === 0)
      if (isRight || performance.now() >= deadline) return results
      await sleep(200)
    }
  }

  async #runChecks(checks: readonly Check[], memory: FlowMemory): Promise<readonly CheckResult[]> {
    const results: CheckResult[] = []
    const queue = checks.entries()
    const lane = async () => {
      for (const [index, check] of queue) {
        results[index] = [check, await runCheck(this.#options.world, check, memory)]
      }
    }
    await Promise.all(Array.from({ length: parallelChecks }, lane))
    return results
  }

  async #start(each: Case): Promise<void> {
    const settings = JSON.stringify(each.settings)
    if (settings === this.#settings) return
    const objects = objectsOf([], initialCluster)
    const { subject } = this.#options
    if (this.#settings !== undefined && subject.startAnew) {
      await subject.startAnew(each.settings, [...objects.values()])
      this.#applied = objects
    } else await this.#restart(each, objects)
    this.#settings = settings
  }

  async #restart({ settings }: Case, objects: Objects): Promise<void> {
    const { subject, world } = this.#options
    await subject.stop()
    await subject.start(world, settings, [...objects.values()])
    this.#applied = objects
  }

  async #apply(wanted: Objects): Promise<void> {
    const upserts = [...wanted]
      .filter(([id, manifest]) => {
        const applied = this.#applied.get(id)
        return applied === undefined || JSON.stringify(applied) !== JSON.stringify(manifest)
      })
      .map(([, manifest]) => manifest)
    const removals = [...this.#applied].filter(([id]) => !wanted.has(id)).map(([, old]) => old)
    this.#applied = wanted
    await this.#options.subject.apply({ upserts, removals })
  }
}
