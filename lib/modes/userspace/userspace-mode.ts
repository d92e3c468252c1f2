import { setTimeout as sleep } from 'node:timers/promises'
import { Turns } from '../../async.js'
import { ConfigError, messageOf } from '../../errors.js'
import type { Run } from '../../kernel/iptables.js'
import { isLoopback, parseIp, type IpFamily } from '../../state/ip.js'
import { forgetAll, knownByFamily } from '../known.js'
import type { Applied, Mode, ModeContext } from '../mode.js'
import { FamilyApplier } from './apply.js'
import { createListeners } from './listeners/create-listeners.js'
import type { Listeners } from './listeners/listeners.js'
import { NodePortClaims } from './portals/node-port-claims.js'
import { openWays, removeAddressesOf, removeRules, type WaysByFamily } from './portals/open-ways.js'
import { userspacePlanner, type UserspacePlan } from './plan.js'
import { UdpFlowCleaner } from './portals/udp-flow-cleaner.js'
import { renderPlan, renderPlanChanges } from './render.js'
import { Giver, type HandOver } from './takeover/giver.js'
import { Taker } from './takeover/taker.js'
import type { UserspaceSettings } from './settings.js'
import type { Ways } from './portals/ways.js'

/** How often the kernel is asked whether our rules are still there; at most, see `syncPeriod`. */
const longestCheckMs = 10_000

interface Family {
  readonly ways: Ways
  readonly applier: FamilyApplier
}

/** The live mode: worker threads that listen, and rules or addresses that lead to them. */
export class UserspaceMode implements Mode<UserspacePlan> {
  readonly cleansFlows = true
  readonly plan: Mode<UserspacePlan>['plan']
  readonly #settings: UserspaceSettings
  readonly #context: ModeContext
  readonly #run: Run | undefined
  readonly #claims = new NodePortClaims()
  readonly #listeners: Listeners
  readonly #flows: UdpFlowCleaner
  readonly #families: ReadonlyMap<IpFamily, Family>
  /** Families whose first plan is not yet applied. */
  readonly #starting: Set<IpFamily>
  #taker: Taker | undefined
  #giver: Giver | undefined
  /** The listeners are another process's now, or are about to close. */
  #isLeaving = false
  #isHandedOver = false
  readonly #known = knownByFamily<UserspacePlan>()
  /** Of applies of both families, checks, a take-over and the end. */
  readonly #turns = new Turns()

  private constructor(
    settings: UserspaceSettings,
    context: ModeContext,
    ways: WaysByFamily,
    run: Run | undefined,
  ) {
    this.#run = run
    this.#settings = settings
    this.#context = context
    const direct = [...ways].filter(([, { listensDirectly }]) => listensDirectly)
    this.plan = userspacePlanner(settings, new Set(direct.map(([family]) => family)))
    const listeners = createListeners(settings, context)
    this.#listeners = listeners
    const flows = new UdpFlowCleaner(context)
    this.#flows = flows
    this.#families = new Map(
      [...ways].map(([family, way]) => {
        const parts = { listeners, claims: this.#claims, ways: way, flows }
        return [family, { ways: way, applier: new FamilyApplier(family, parts) }]
      }),
    )
    this.#starting = new Set(this.#families.keys())
    const { takeover, takeoverFolder } = settings
    if (takeover) this.#taker = new Taker(takeoverFolder, context.log)
  }

  static async create(
    settings: UserspaceSettings,
    families: readonly IpFamily[],
    context: ModeContext,
    run?: Run,
  ): Promise<UserspaceMode> {
    const ways = await openWays(settings, families, context.log, run)
    if ([...ways.values()].some(({ listensDirectly }) => !listensDirectly)) {
      checkBindAddress(settings.bindAddress)
    }
    return new UserspaceMode(settings, context, ways, run)
  }

  render(plan: UserspacePlan): string {
    return renderPlan(plan, this.#settings)
  }

  renderChanges(plan: UserspacePlan, previous: UserspacePlan | undefined): string {
    return renderPlanChanges(plan, previous, this.#settings)
  }

  apply(plan: UserspacePlan): Promise<Applied> {
    return this.#turns.take(async () => {
      const family = this.#families.get(plan.family)
      if (!family) throw new ConfigError(`apply ${plan.family}: the mode was not made for it`)
      if (this.#isHandedOver) return { full: false, bytes: 0, objects: 0, failed: [] }
      return this.#known[plan.family].update(async (previous) => {
        if (this.#taker) this.#listeners.receive(await this.#taker.take())
        const result = await family.applier.apply(plan, previous)
        if (this.#starting.has(plan.family)) await this.#removeOtherWay(plan.family, family.ways)
        if (this.#starting.delete(plan.family) && this.#starting.size === 0) await this.#started()
        return { now: plan, result }
      })
    })
  }

  forget(): void {
    forgetAll(this.#known)
  }

  async run(signal: AbortSignal): Promise<void> {
    const checkMs = Math.min(this.#settings.syncPeriodMs, longestCheckMs)
    try {
      for (;;) {
        await sleep(checkMs, undefined, { signal })
        await this.#check()
      }
    } catch (error) {
      if (!signal.aborted) throw error
    }
  }

  /**
   * Takes the rules away, so that nobody new is sent here, and lets connections finish. Unlike
   * the kernel modes' rules (L17), these lead to a process that is about to end; unless another
   * process has taken the listeners over, which the rules lead to now.
   */
  close(): Promise<void> {
    this.#isLeaving = true
    this.#giver?.close()
    this.#taker?.close()
    return this.#turns.take(async () => {
      for (const [family, { ways }] of this.#isHandedOver ? [] : this.#families) {
        try {
          await this.#flows.forget(family, await ways.remove())
        } catch (error) {
          this.#context.log.warn({ err: error, family }, 'remove the rules of userspace mode')
        }
      }
      this.#claims.close()
      await this.#listeners.drain(this.#settings.drainTimeoutMs)
    })
  }

  /** What an earlier process has left that did not lead traffic the same way. */
  async #removeOtherWay(family: IpFamily, { listensDirectly }: Ways): Promise<void> {
    try {
      if (listensDirectly) await removeRules(family, this.#flows, this.#run)
      else await removeAddressesOf([family], this.#context.log)
    } catch (error) {
      const fields = { family, reason: messageOf(error) }
      this.#context.log.info(fields, 'not removed: what an earlier run may have left')
    }
  }

  /** Everything is in force: whoever was here before may go, and whoever comes next may ask. */
  async #started(): Promise<void> {
    await this.#taker?.done(this.#listeners.unused())
    this.#taker = undefined
    const { takeoverFolder } = this.#settings
    if (takeoverFolder === '' || this.#isLeaving) return
    const handOver: HandOver = (...args) => this.#handOver(...args)
    this.#giver = await Giver.open(takeoverFolder, handOver, this.#context.log)
  }

  /** Nothing else happens until the new process works or has given up. */
  #handOver(...[copy, hand]: Parameters<HandOver>): Promise<void> {
    return this.#turns.take(async () => {
      if (this.#hasGivenUp()) return
      const given = await this.#listeners.give(copy)
      this.#claims.close()
      if ((await hand(given)) || this.#hasGivenUp()) {
        this.#isHandedOver = true
        this.#context.stop?.('another process has taken the listeners over')
        return
      }
      for (const { applier } of this.#families.values()) applier.forgetClaims()
      this.#listeners.receive(given)
      const reason = 'the process that took the listeners over has ended; taking them back'
      this.#context.resync(reason, { full: true })
    })
  }

  #hasGivenUp(): boolean {
    return this.#isLeaving || this.#isHandedOver
  }

  async #check(): Promise<void> {
    for (const [family, { ways }] of this.#families) {
      try {
        if (await this.#turns.take(async () => this.#isHandedOver || (await ways.isIntact())))
          continue
        const reason = `what leads to the ${family} listeners was changed by somebody else`
        this.#context.resync(reason, { full: true })
        return
      } catch (error) {
        this.#context.log.warn({ err: error, family }, 'look at the rules of userspace mode')
      }
    }
  }
}

/** What other nodes and pods cannot reach cannot be the address of their Services (US30). */
export function checkBindAddress(text: string): void {
  const ip = parseIp(text)
  if (!ip || isLoopback(ip)) {
    throw new ConfigError(
      `bindAddress ${JSON.stringify(text)}: userspace mode cannot proxy on it; use 0.0.0.0 or an address of this node`,
    )
  }
}
