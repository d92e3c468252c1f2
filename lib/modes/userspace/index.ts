import { setTimeout as sleep } from 'node:timers/promises'
import { ConfigError, messageOf } from '../../errors.js'
import type { Run } from '../../kernel/iptables.js'
import { listeningSockets } from '../../kernel/sockets/listening.js'
import { isLoopback, parseIp, type IpFamily } from '../../state/ip.js'
import type { Applied, Mode, ModeContext, ModeDefinition, ModeSettings, Planner } from '../mode.js'
import { FamilyApplier } from './apply.js'
import { userspaceDifferences } from './differences.js'
import { createListeners } from './listeners/create-listeners.js'
import type { Listeners } from './listeners/listeners.js'
import { UserspacePlanner, type UserspacePlan } from './plan.js'
import { addressDifferences } from './portals/address-differences.js'
import { readPortals } from './portals/iptables-portals.js'
import {
  openIptables,
  openPortals,
  removeAddressesOf,
  removeRules,
  settledPortals,
  withLinks,
  type PortalsByFamily,
} from './portals/open-portals.js'
import type { Portals } from './portals/portals.js'
import { ReservedNodePorts } from './portals/reserved-node-ports.js'
import { withoutSubChains } from './portals/sub-chains.js'
import { UdpFlowCleaner } from './portals/udp-flow-cleaner.js'
import { probeUserspace } from './probe.js'
import { fixedRules, renderPlan, renderPlanChanges } from './render.js'
import { Giver, type HandOver } from './takeover/giver.js'
import { Taker } from './takeover/taker.js'

export const definition: ModeDefinition = {
  name: 'userspace',
  summary: 'a listener in this process for every service port, behind iptables redirects',

  probe: probeUserspace,

  planner(settings) {
    if (settings.userspace.portals !== 'addresses') {
      checkBindAddress(settings.userspace.bindAddress)
    }
    const planner = new UserspacePlanner(settings)
    const typed: Planner<UserspacePlan> = {
      plan: (state) => planner.plan(state),
      render: (plan) => renderPlan(plan, settings),
      renderChanges: (plan, previous) => renderPlanChanges(plan, previous, settings),
    }
    return typed
  },

  create: (settings, context) => UserspaceMode.create(settings, context),

  async settle(settings, family) {
    const portals = await settledPortals(settings.userspace.portals, family)
    return { ...settings, userspace: { ...settings.userspace, portals } }
  },

  async differences(state, settings) {
    const plan = new UserspacePlanner(settings).plan(state)
    const sockets = await listeningSockets()
    if (settings.userspace.portals === 'addresses') {
      return withLinks((links) => addressDifferences(plan, links, sockets))
    }
    const tables = withoutSubChains(await readPortals(await openIptables(state.family)))
    const listening = new Set(sockets.map(({ protocol, port }) => `${protocol} ${port}`))
    const listing = { tables, listening }
    return userspaceDifferences(plan, fixedRules(settings.userspace.portRange), listing)
  },

  async cleanup(context) {
    const flows = new UdpFlowCleaner(context)
    for (const family of bothFamilies) await removeRules(family, flows)
    try {
      await removeAddressesOf(bothFamilies, context.log)
    } catch (error) {
      const fields = { reason: messageOf(error) }
      context.log.info(fields, 'addresses of Services on this machine cannot be looked for')
    }
  },
}

const bothFamilies: readonly IpFamily[] = ['IPv4', 'IPv6']

/** The rules are checked every `syncPeriod`, and at least that often. */
const longestCheckMs = 10_000

interface Family {
  readonly portals: Portals
  readonly applier: FamilyApplier
}

/** The live mode: listeners on worker threads, and rules or addresses that lead to them. */
export class UserspaceMode implements Mode<UserspacePlan> {
  readonly name = 'userspace'
  readonly cleansFlows = true
  readonly #settings: ModeSettings
  readonly #context: ModeContext
  readonly #planner: UserspacePlanner
  readonly #run: Run | undefined
  readonly #nodePorts = new ReservedNodePorts()
  readonly #listeners: Listeners
  readonly #flows: UdpFlowCleaner
  readonly #families: ReadonlyMap<IpFamily, Family>
  /** Families whose first plan is not yet applied. */
  readonly #starting: Set<IpFamily>
  #taker: Taker | undefined
  #giver: Giver | undefined
  /** The mode is about to close. */
  #isLeaving = false
  /** Another process has the listeners now. */
  #isHandedOver = false
  /** Ends after the last action: applying, checking, handing over and closing never overlap. */
  #turn: Promise<unknown> = Promise.resolve()

  private constructor(
    settings: ModeSettings,
    context: ModeContext,
    portals: PortalsByFamily,
    run: Run | undefined,
  ) {
    this.#run = run
    this.#settings = settings
    this.#context = context
    const direct = [...portals].filter(([, { listensDirectly }]) => listensDirectly)
    this.#planner = new UserspacePlanner(settings, new Set(direct.map(([family]) => family)))
    const listeners = createListeners(settings, context)
    this.#listeners = listeners
    const flows = new UdpFlowCleaner(context)
    this.#flows = flows
    this.#families = new Map(
      [...portals].map(([family, opened]) => {
        const parts = { listeners, nodePorts: this.#nodePorts, portals: opened, flows }
        return [family, { portals: opened, applier: new FamilyApplier(family, parts) }]
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
    const portals = await openPortals(settings, context.log, run)
    if ([...portals.values()].some(({ listensDirectly }) => !listensDirectly)) {
      checkBindAddress(settings.userspace.bindAddress)
    }
    return new UserspaceMode(settings, context, portals, run)
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
      if (this.#starting.has(plan.family))
        await this.#removeOtherPortals(plan.family, family.portals)
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
   * Removes the rules, so that no new client is sent here, and lets connections finish. Rules of
   * kernel modes stay (L17), but these lead to a process that is about to end. They stay only when
   * another process has taken the listeners over.
   */
  close(): Promise<void> {
    this.#isLeaving = true
    this.#giver?.close()
    this.#taker?.close()
    return this.#inTurn(async () => {
      for (const [family, { portals }] of this.#isHandedOver ? [] : this.#families) {
        try {
          await this.#flows.forget(family, await portals.remove())
        } catch (error) {
          this.#context.log.warn({ err: error, family }, 'remove the rules of userspace mode')
        }
      }
      this.#nodePorts.close()
      await this.#listeners.drain(this.#settings.userspace.drainTimeoutMs)
    })
  }

  /** Removes rules or addresses of an earlier process that used the other kind of portals. */
  async #removeOtherPortals(family: IpFamily, { listensDirectly }: Portals): Promise<void> {
    try {
      if (listensDirectly) await removeRules(family, this.#flows, this.#run)
      else await removeAddressesOf([family], this.#context.log)
    } catch (error) {
      const fields = { family, reason: messageOf(error) }
      this.#context.log.info(fields, 'rules or addresses of an earlier run cannot be removed')
    }
  }

  /** Ends the take-over from an earlier process, and waits for a later one. */
  async #started(): Promise<void> {
    await this.#taker?.done(this.#listeners.unused())
    this.#taker = undefined
    const { takeoverFolder } = this.#settings.userspace
    if (takeoverFolder === '' || this.#isLeaving) return
    const handOver: HandOver = (...args) => this.#handOver(...args)
    this.#giver = await Giver.open(takeoverFolder, handOver, this.#context.log)
  }

  /** Gives the listeners away and does nothing else until the new process works or gives up. */
  #handOver(...[copy, hand]: Parameters<HandOver>): Promise<void> {
    return this.#inTurn(async () => {
      if (this.#hasGivenUp()) return
      const given = await this.#listeners.give(copy)
      this.#nodePorts.close()
      if ((await hand(given)) || this.#hasGivenUp()) {
        this.#isHandedOver = true
        this.#context.stop?.('another process has taken the listeners over')
        return
      }
      for (const { applier } of this.#families.values()) applier.forgetNodePorts()
      this.#listeners.receive(given)
      const reason = 'the process that took the listeners over has ended; taking them back'
      this.#context.resync(reason, { full: true })
    })
  }

  #hasGivenUp(): boolean {
    return this.#isLeaving || this.#isHandedOver
  }

  async #check(): Promise<void> {
    for (const [family, { portals }] of this.#families) {
      try {
        if (await this.#inTurn(async () => this.#isHandedOver || (await portals.isIntact())))
          continue
        const reason = `another program changed what leads to the ${family} listeners`
        this.#context.resync(reason, { full: true })
        return
      } catch (error) {
        this.#context.log.warn({ err: error, family }, 'check the rules of userspace mode')
      }
    }
  }

  #inTurn<T>(action: () => Promise<T>): Promise<T> {
    const result = this.#turn.then(action)
    this.#turn = result.catch(() => undefined)
    return result
  }
}

/** Other nodes and pods cannot reach listeners on a loopback address (US30). */
function checkBindAddress(text: string): void {
  const ip = parseIp(text)
  if (!ip || isLoopback(ip)) {
    throw new ConfigError(
      `bindAddress ${JSON.stringify(text)}: userspace mode cannot proxy on it; use 0.0.0.0 or an address of this node`,
    )
  }
}
