import { Turns } from '../../async.js'
import { ConfigError, messageOf, type KernelError } from '../../errors.js'
import type { Config } from '../../config/config.js'
import { kernelError } from '../../kernel/command.js'
import type { Run } from '../../kernel/iptables.js'
import { farewellsSent } from '../../kernel/sockets/listening.js'
import { type IpFamily } from '../../state/ip.js'
import { Complaints } from '../complaints.js'
import { LookPauses, type ForeignCommits } from '../foreign-commits.js'
import { forgetAll, knownByFamily } from '../known.js'
import type { Applied, ListenerDescriptors, Mode, ModeContext } from '../mode.js'
import { FamilyApplier } from './apply.js'
import { createListeners } from './listeners/create-listeners.js'
import type { Listeners } from './listeners/listeners.js'
import { checkBindAddress, userspacePlanner, type UserspacePlan } from './plan.js'
import {
  linux,
  openForeignCommits,
  openIptables,
  openPortals,
  removeOtherPortals,
  type PortalMeans,
  type PortalsByFamily,
} from './portals/open-portals.js'
import type { Portals } from './portals/portals.js'
import { SourceKeeping } from './portals/source-keeping.js'
import { SourceRouting } from './portals/source-routing.js'
import { SourceSwitch } from './datapath/source-keeper.js'
import { UdpFlowCleaner } from './portals/udp-flow-cleaner.js'
import { renderPlan, renderPlanChanges } from './render.js'
import { userspaceSettings, type UserspaceSettings } from './settings.js'
import { Giver, type HandOver } from './takeover/giver.js'
import { Taker } from './takeover/taker.js'

/** Rules are checked every `syncPeriod`, but at least this often, to be repaired within 10 s. */
const longestCheckMs = 8000
const checkAgainMs = 2000
const nothingDone: Applied = { full: false, bytes: 0, objects: 0, failed: [] }

interface Family {
  readonly portals: Portals
  readonly complaints: Complaints
  readonly applier: FamilyApplier
  readonly sources: SourceKeeping
}

interface Parts {
  readonly run: Run | undefined
  readonly means: PortalMeans
  readonly foreign: ForeignCommits
  readonly taker: Taker | undefined
}

/** The live mode: listeners on worker threads, and rules or addresses that lead to them. */
export class UserspaceMode implements Mode<UserspacePlan> {
  readonly staleFlows: UdpFlowCleaner
  readonly hasNoRules: boolean
  plan: Mode<UserspacePlan>['plan']
  readonly #direct: ReadonlySet<IpFamily>
  readonly descriptors: ListenerDescriptors
  #settings: UserspaceSettings
  readonly #context: ModeContext
  readonly #parts: Parts
  readonly #listeners: Listeners
  readonly #families: ReadonlyMap<IpFamily, Family>
  /** Families whose first plan is not yet applied. */
  readonly #starting: Set<IpFamily>
  #taker: Taker | undefined
  #giver: Giver | undefined
  /** The mode is about to close. */
  #isLeaving = false
  /** Another process has the listeners now. */
  #isHandedOver = false
  /** Why the first sync failed after another process had given its listeners. */
  #failure: KernelError | undefined
  readonly #known = knownByFamily<UserspacePlan>()
  /** Applying, checking, handing over and closing never overlap. */
  readonly #turns = new Turns()

  private constructor(
    settings: UserspaceSettings,
    context: ModeContext,
    portals: PortalsByFamily,
    parts: Parts,
  ) {
    const { run, foreign } = parts
    this.#parts = parts
    this.#taker = parts.taker
    this.#settings = settings
    this.#context = context
    const direct = [...portals].filter(([, { listensDirectly }]) => listensDirectly)
    this.#direct = new Set(direct.map(([family]) => family))
    this.plan = userspacePlanner(settings, this.#direct)
    const sourceSwitch = new SourceSwitch()
    const listeners = createListeners(settings, context, sourceSwitch.shared)
    this.#listeners = listeners
    this.descriptors = listeners.descriptors
    const flows = new UdpFlowCleaner(context)
    this.staleFlows = flows
    this.hasNoRules = this.#direct.size === portals.size
    this.#families = new Map(
      [...portals].map(([family, opened]) => {
        const open = async () => opened.iptables ?? openIptables(family, run)
        const sources = new SourceKeeping(family, {
          routing: new SourceRouting(family, open, foreign),
          switch: sourceSwitch,
          isRequired: settings.sourceAddress === 'keep',
          log: context.log,
        })
        const complaints = new Complaints(context.log)
        const applier = new FamilyApplier(family, { listeners, portals: opened, flows, sources })
        return [family, { portals: opened, complaints, applier, sources }]
      }),
    )
    this.#starting = new Set(this.#families.keys())
  }

  static async create(
    settings: UserspaceSettings,
    families: readonly IpFamily[],
    context: ModeContext,
    { run, means = linux }: Partial<Pick<Parts, 'run' | 'means'>> = {},
  ): Promise<UserspaceMode> {
    const { takeover, takeoverFolder } = settings
    const taker =
      takeoverFolder === '' ? undefined : await Taker.open(takeoverFolder, takeover, context.log)
    const foreign = await openForeignCommits(means)
    const portals = await openPortals(settings, families, { log: context.log, run, means, foreign })
    if ([...portals.values()].some(({ listensDirectly }) => !listensDirectly)) {
      checkBindAddress(settings.bindAddress)
    }
    return new UserspaceMode(settings, context, portals, { run, means, foreign, taker })
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
      if (this.#isHandedOver) return nothingDone
      return this.#known[plan.family].update(async (previous) => {
        if (this.#taker) this.#listeners.receive(await this.#taker.take())
        if (this.#isHandedOver) return { now: plan, result: nothingDone }
        const result = await family.applier
          .apply(plan, previous)
          .catch((error: unknown) => this.#giveBack(error))
        if (this.#starting.has(plan.family)) {
          const parts = { ...this.#parts, flows: this.staleFlows, log: this.#context.log }
          await removeOtherPortals(plan.family, family.portals, parts)
        }
        if (this.#starting.delete(plan.family) && this.#starting.size === 0) await this.#started()
        return { now: plan, result }
      })
    })
  }

  /** Nobody would serve, because the old process waits. It goes on when this one ends. */
  #giveBack(error: unknown): never {
    if (this.#taker?.isAwaited === true) {
      this.#failure = kernelError(error, 'take over listeners')
      this.#isHandedOver = this.#taker.close()
      this.#context.stop?.('the first sync failed; the old process takes its listeners back')
    }
    throw error
  }

  forget(): void {
    forgetAll(this.#known)
  }

  /** Other settings than these do not change while the mode runs. */
  reconfigure(config: Config): boolean {
    const { syncPeriodMs, drainTimeoutMs, masqueradesAll } = userspaceSettings(config)
    const isPlannedAnew = masqueradesAll !== this.#settings.masqueradesAll
    this.#settings = { ...this.#settings, syncPeriodMs, drainTimeoutMs, masqueradesAll }
    if (isPlannedAnew) this.plan = userspacePlanner(this.#settings, this.#direct)
    return isPlannedAnew
  }

  async run(signal: AbortSignal): Promise<void> {
    // The first sync would not end before an old process answers, which may be stopped.
    const giveUp = () => {
      if (this.#taker?.isWaiting === true) this.#isHandedOver = this.#taker.close()
    }
    signal.addEventListener('abort', giveUp, { once: true })
    const pauses = new LookPauses(this.#parts.foreign)
    for (let wasIntact = true; ;) {
      const checkMs = Math.min(this.#settings.syncPeriodMs, longestCheckMs)
      // The second look shows whether the repair has helped.
      await pauses.pause(wasIntact ? checkMs : Math.min(checkMs, checkAgainMs), signal)
      if (signal.aborted) return
      wasIntact = await this.#check()
    }
  }

  /**
   * Removes the rules, so that no new client is sent here, and lets connections finish. Kernel
   * modes leave their rules (L17), but the rules of this mode lead to a process that is about to
   * end. They stay only when an earlier or a later process has the listeners.
   */
  close(): Promise<void> {
    this.#isLeaving = true
    this.#giver?.close()
    if (this.#taker?.close() === true) this.#isHandedOver = true
    return this.#turns.take(async () => {
      await this.#removePortals(async (portals, family) => {
        await this.staleFlows.forget(family, await portals.remove())
      })
      this.#closeNodePorts()
      await this.#listeners.drain(this.#settings.drainTimeoutMs)
      if (!this.#isHandedOver) await farewellsSent(this.#listeners.ports)
      await this.#removePortals((portals) => portals.drained())
      if (this.#failure) throw this.#failure
      if (this.#isHandedOver || !this.#parts.means.hasRules) return
      await Promise.all([...this.#families.values()].map(({ sources }) => sources.remove()))
    })
  }

  /** Portals belong to the process that has the listeners. Families wait together for a lock. */
  async #removePortals(remove: (portals: Portals, family: IpFamily) => Promise<void>) {
    const families = this.#isHandedOver ? [] : [...this.#families]
    const removing = families.map(([family, { portals }]) =>
      remove(portals, family).catch((error: unknown) => {
        this.#context.log.warn({ err: error, family }, 'remove the rules of userspace mode')
      }),
    )
    await Promise.all(removing)
  }

  /** Ends the start, with the take-over from an earlier process, and waits for a later one. */
  async #started(): Promise<void> {
    await this.#taker?.done(this.#listeners.unused())
    // Connections of a process that gave its listeners to this one may still need it.
    if (!this.#settings.takeover && this.#parts.means.hasRules) {
      for (const { sources } of this.#families.values()) await sources.tidy()
    }
    const { takeoverFolder } = this.#settings
    if (takeoverFolder !== '' && !this.#isLeaving) {
      const handOver: HandOver = (...args) => this.#handOver(...args)
      this.#giver = await Giver.open(takeoverFolder, handOver, this.#context.log)
    }
    // Comes last: a process that starts earlier finds nobody to ask, and would run beside this one.
    this.#taker?.close()
    this.#taker = undefined
  }

  /** Gives the listeners away and does nothing else until the new process works or gives up. */
  #handOver(...[copy, hand]: Parameters<HandOver>): Promise<void> {
    return this.#turns.take(async () => {
      if (this.#hasGivenUp()) return
      const given = await this.#listeners.give(copy)
      this.#closeNodePorts()
      if ((await hand(given)) || this.#hasGivenUp()) {
        this.#isHandedOver = true
        this.#context.stop?.('another process has taken the listeners over')
        return
      }
      this.#listeners.receive(given)
      const reason = 'the process that took the listeners over has ended; taking them back'
      this.#context.resync(reason, { byOthers: false })
    })
  }

  #closeNodePorts(): void {
    for (const { applier } of this.#families.values()) applier.closeNodePorts()
  }

  #hasGivenUp(): boolean {
    return this.#isLeaving || this.#isHandedOver
  }

  async #check(): Promise<boolean> {
    let wereIntact = true
    for (const [family, { portals, complaints, sources }] of this.#families) {
      try {
        if (!this.#hasGivenUp()) await this.#turns.take(() => sources.look())
        // What is about to be written anew would only be reported once more.
        const isKnown = (await this.#known[family].settled()) !== undefined
        wereIntact &&= isKnown
        const isIntact = !isKnown || this.#hasGivenUp() || (await portals.isIntact())
        complaints.settled()
        if (isIntact || this.#hasGivenUp()) continue
        const reason = `another program changed rules or addresses that lead to ${family} listeners`
        this.#context.resync(reason, { byOthers: true })
        return false
      } catch (error) {
        const fields = { family, error: messageOf(error) }
        complaints.warn(fields, 'could not look after the rules of userspace mode, will retry')
      }
    }
    return wereIntact
  }
}
