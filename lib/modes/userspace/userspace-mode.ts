import { cpus } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { ConfigError } from '../../errors.js'
import { Iptables, type Run } from '../../kernel/iptables.js'
import { isLoopback, parseIp, type IpFamily } from '../../state/ip.js'
import type { Applied, Mode, ModeContext, ModeSettings } from '../mode.js'
import { FamilyApplier } from './apply.js'
import { DescriptorBudget, descriptorLimit } from './descriptors.js'
import { Listeners } from './listeners.js'
import { NodePortClaims } from './node-port-claims.js'
import { UserspacePlanner, type UserspacePlan } from './plan.js'
import { UdpFlowCleaner } from './udp-flow-cleaner.js'
import { WorkerPool } from './pool.js'
import { kernelErrorOf, Portals } from './portals.js'
import { fixedRules, renderPlan, renderPlanChanges } from './render.js'
import { TrafficMeter } from './traffic-meter.js'

/** How often the kernel is asked whether our rules are still there; at most, see `syncPeriod`. */
const longestCheckMs = 10_000

interface Family {
  readonly portals: Portals
  readonly applier: FamilyApplier
}

/** The live mode: worker threads that listen, and iptables rules that lead to them. */
export class UserspaceMode implements Mode<UserspacePlan> {
  readonly name = 'userspace'
  readonly #settings: ModeSettings
  readonly #context: ModeContext
  readonly #planner: UserspacePlanner
  readonly #pool: WorkerPool
  readonly #claims = new NodePortClaims()
  readonly #families: ReadonlyMap<IpFamily, Family>
  /** One thing at a time: applies of both families, checks, the end. */
  #turn: Promise<unknown> = Promise.resolve()

  private constructor(settings: ModeSettings, context: ModeContext, iptables: readonly Iptables[]) {
    this.#settings = settings
    this.#context = context
    this.#planner = new UserspacePlanner(settings)
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
    const flows = new UdpFlowCleaner({
      log: context.log,
      meter: context.meter,
      // It speaks netlink through koffi, which not every node can load.
      openTable: async () => new (await import('../../kernel/conntrack.js')).Conntrack(),
    })
    const fixed = fixedRules(settings.userspace.portRange)
    this.#families = new Map(
      iptables.map((programs) => {
        const portals = new Portals(programs, fixed)
        const parts = { listeners, claims: this.#claims, portals, flows }
        const applier = new FamilyApplier(programs.family, parts)
        return [programs.family, { portals, applier }]
      }),
    )
  }

  static async create(
    settings: ModeSettings,
    context: ModeContext,
    run?: Run,
  ): Promise<UserspaceMode> {
    checkBindAddress(settings.userspace.bindAddress)
    return new UserspaceMode(settings, context, await openIptables(settings.families, run))
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
      return family.applier.apply(plan, previous)
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
   * the kernel modes' rules (L17), these lead to a process that is about to end.
   */
  close(): Promise<void> {
    return this.#inTurn(async () => {
      for (const { portals } of this.#families.values()) {
        await portals.remove().catch((error: unknown) => {
          this.#context.log.warn({ err: error }, 'remove the rules of userspace mode')
        })
      }
      this.#claims.close()
      await this.#pool.close(this.#settings.userspace.drainTimeoutMs)
    })
  }

  async #check(): Promise<void> {
    for (const [family, { portals }] of this.#families) {
      try {
        if (await this.#inTurn(() => portals.isIntact())) continue
        const reason = `${family} rules of userspace mode were changed by somebody else`
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

export async function openIptables(
  families: readonly IpFamily[],
  run?: Run,
): Promise<readonly Iptables[]> {
  try {
    return await Promise.all(
      families.map((family) => Iptables.open({ family, ...(run ? { run } : {}) })),
    )
  } catch (error) {
    throw kernelErrorOf(error)
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

function createPool(
  { userspace }: ModeSettings,
  context: ModeContext,
  on: {
    readonly traffic: TrafficMeter
    readonly lost: (isGone: (listenerKey: string) => boolean) => void
  },
): WorkerPool {
  const { log } = context
  const options = {
    workers: userspace.workers === 0 ? cpus().length : userspace.workers,
    dataPath: userspace.datapath,
    passiveHealth: userspace.passiveHealth,
    accessLog: userspace.accessLog,
    descriptors: DescriptorBudget.allocate(descriptorLimit()),
  }
  return new WorkerPool(options, {
    ready: (dataPath, note) => {
      log.info({ dataPath, ...(note === '' ? {} : { note }) }, 'userspace worker is ready')
    },
    counts: (counts) => {
      on.traffic.record(counts)
    },
    access: (entries) => {
      for (const entry of entries) log.info(entry, 'connection')
    },
    warning: (message, repeated) => {
      log.warn(repeated === 0 ? {} : { repeated }, message)
    },
    lost: (reason, isGone) => {
      on.lost(isGone)
      log.error({ reason }, 'a userspace worker ended with its connections; it was replaced')
      context.resync(reason, { full: true })
    },
  })
}
