import { cpus } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { ConfigError, messageOf } from '../../errors.js'
import type { Run } from '../../kernel/iptables.js'
import type { IpFamily } from '../../state/ip.js'
import type { Applied, Mode, ModeContext, ModeSettings } from '../mode.js'
import { FamilyApplier } from './apply.js'
import { DescriptorBudget, descriptorLimit, waitingSeats } from './datapath/descriptors.js'
import { Listeners } from './listeners/listeners.js'
import { NodePortClaims } from './portals/node-port-claims.js'
import { openWays, removeAddressesOf, removeRules, type WaysByFamily } from './portals/open-ways.js'
import { checkBindAddress, UserspacePlanner, type UserspacePlan } from './plan.js'
import { UdpFlowCleaner } from './portals/udp-flow-cleaner.js'
import { WorkerPool } from './listeners/pool.js'
import { renderPlan, renderPlanChanges } from './render.js'
import { Giver, type HandOver } from './takeover/giver.js'
import { Taker } from './takeover/taker.js'
import { TrafficMeter } from './listeners/traffic-meter.js'
import type { Ways } from './portals/ways.js'

/** How often the kernel is asked whether our rules are still there; at most, see `syncPeriod`. */
const longestCheckMs = 10_000

interface Family {
  readonly ways: Ways
  readonly applier: FamilyApplier
}

/** The live mode: worker threads that listen, and rules or addresses that lead to them. */
export class UserspaceMode implements Mode<UserspacePlan> {
  readonly name = 'userspace'
  readonly cleansFlows = true
  readonly #settings: ModeSettings
  readonly #context: ModeContext
  readonly #planner: UserspacePlanner
  readonly #run: Run | undefined
  readonly #pool: WorkerPool
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
  /** One thing at a time: applies of both families, checks, a take-over, the end. */
  #turn: Promise<unknown> = Promise.resolve()

  private constructor(
    settings: ModeSettings,
    context: ModeContext,
    ways: WaysByFamily,
    run: Run | undefined,
  ) {
    this.#run = run
    this.#settings = settings
    this.#context = context
    const direct = [...ways].filter(([, { listensDirectly }]) => listensDirectly)
    this.#planner = new UserspacePlanner(settings, new Set(direct.map(([family]) => family)))
    const traffic = new TrafficMeter(context.meter)
    this.#pool = createPool(settings, context, {
      traffic,
      lost: (isGone) => {
        listeners.forget(isGone)
      },
    })
    const listeners = new Listeners(this.#pool, {
      range: settings.userspace.portRange,
      meter: context.meter,
      closed: (key) => {
        traffic.closed(key)
      },
    })
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
    const { takeover, takeoverFolder } = settings.userspace
    if (takeover) this.#taker = new Taker(takeoverFolder, context.log)
  }

  static async create(
    settings: ModeSettings,
    context: ModeContext,
    run?: Run,
  ): Promise<UserspaceMode> {
    const ways = await openWays(settings, context.log, run)
    if ([...ways.values()].some(({ listensDirectly }) => !listensDirectly)) {
      checkBindAddress(settings.userspace.bindAddress)
    }
    return new UserspaceMode(settings, context, ways, run)
  }

  plan(...args: Parameters<UserspacePlanner['plan']>): UserspacePlan {
    return this.#planner.plan(...args)
  }

  render(plan: UserspacePlan): string {
    return renderPlan(plan, this.#settings)
  }

  renderChanges(plan: UserspacePlan, previous: UserspacePlan | undefined): string {
    return renderPlanChanges(plan, previous, this.#settings)
  }

  apply(plan: UserspacePlan, previous: UserspacePlan | undefined): Promise<Applied> {
    return this.#inTurn(async () => {
      const family = this.#families.get(plan.family)
      if (!family) throw new ConfigError(`apply ${plan.family}: the mode was not made for it`)
      if (this.#isHandedOver) return { full: false, bytes: 0, objects: 0, failed: [] }
      if (this.#taker) this.#listeners.receive(await this.#taker.take())
      const applied = await family.applier.apply(plan, previous)
      if (this.#starting.has(plan.family)) await this.#removeOtherWay(plan.family, family.ways)
      if (this.#starting.delete(plan.family) && this.#starting.size === 0) await this.#started()
      return applied
    })
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
    return this.#inTurn(async () => {
      for (const [family, { ways }] of this.#isHandedOver ? [] : this.#families) {
        try {
          await this.#flows.forget(family, await ways.remove())
        } catch (error) {
          this.#context.log.warn({ err: error, family }, 'remove the rules of userspace mode')
        }
      }
      this.#claims.close()
      await this.#pool.close(this.#settings.userspace.drainTimeoutMs)
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
    const { takeoverFolder } = this.#settings.userspace
    if (takeoverFolder === '' || this.#isLeaving) return
    const handOver: HandOver = (...args) => this.#handOver(...args)
    this.#giver = await Giver.open(takeoverFolder, handOver, this.#context.log)
  }

  /** Nothing else happens until the new process works or has given up. */
  #handOver(...[copy, hand]: Parameters<HandOver>): Promise<void> {
    return this.#inTurn(async () => {
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
        if (await this.#inTurn(async () => this.#isHandedOver || (await ways.isIntact()))) continue
        const reason = `what leads to the ${family} listeners was changed by somebody else`
        this.#context.resync(reason, { full: true })
        return
      } catch (error) {
        this.#context.log.warn({ err: error, family }, 'look at the rules of userspace mode')
      }
    }
  }

  #inTurn<T>(action: () => Promise<T>): Promise<T> {
    const result = this.#turn.then(action)
    this.#turn = result.catch(() => undefined)
    return result
  }
}

function createPool(
  { userspace }: ModeSettings,
  context: ModeContext,
  on: {
    readonly traffic: TrafficMeter
    readonly lost: (isGone: (listenerKey: string) => boolean) => void
  },
): WorkerPool {
  const { log } = context
  const limit = descriptorLimit()
  const budget = new DescriptorBudget(DescriptorBudget.allocate(limit, waitingSeats(limit)))
  const countShortages = () => {
    const shortages = budget.takeShortages()
    if (shortages > 0) context.meter.count('userspace_descriptors_exhausted_total', {}, shortages)
  }
  const options = {
    workers: userspace.workers === 0 ? cpus().length : userspace.workers,
    dataPath: userspace.datapath,
    passiveHealth: userspace.passiveHealth,
    accessLog: userspace.accessLog !== undefined,
    descriptors: budget.shared,
  }
  return new WorkerPool(options, {
    ready: (dataPath, note) => {
      log.info({ dataPath, ...(note === '' ? {} : { note }) }, 'userspace worker is ready')
    },
    counts: (counts) => {
      on.traffic.record(counts)
      countShortages()
    },
    access: (entries) => {
      for (const entry of entries) log[userspace.accessLog ?? 'info'](entry, 'connection')
    },
    warning: (message, repeated) => {
      countShortages()
      log.warn(repeated === 0 ? {} : { repeated }, message)
    },
    lost: (reason, isGone) => {
      on.lost(isGone)
      log.error({ reason }, 'a userspace worker ended with its connections; it was replaced')
      context.resync(reason, { full: true })
    },
  })
}
