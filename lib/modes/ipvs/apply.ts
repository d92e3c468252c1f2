import { counted } from '../../state/names.js'
import { pause, Turns } from '../../async.js'
import { messageOf } from '../../errors.js'
import { isPlainMember, type IpSets } from '../../kernel/ipset.js'
import type { IpSetMembers } from '../../kernel/ipset-members.js'
import type { Ipvs, IpvsChange } from '../../kernel/ipvs.js'
import type { Links } from '../../kernel/links.js'
import type { IpFamily } from '../../state/ip.js'
import { Complaints } from '../complaints.js'
import { forgetAll, knownByFamily } from '../known.js'
import type { Applied, ModeContext } from '../mode.js'
import { Reported } from '../reported-differences.js'
import { between, changedIds, countChanges, ownerOf, type Changes } from './changes.js'
import { DrainingServers } from './draining.js'
import { compare, readKernel, type CompareOptions, type KernelView } from './kernel-view.js'
import { deviceName } from './names.js'
import type { IpvsPlan } from './plan.js'
import { Refused, type Refusal } from './refused.js'
import { addressId } from './resource.js'
import type { Rules } from './rules.js'
import { SchedulerFallback } from './scheduler-fallback.js'
import type { IpvsSettings } from './settings.js'
import { ServerWriter } from './server-writer.js'
import { memberChanges, setBatch } from './set-batch.js'

export interface ApplierDeps {
  readonly ipvs: Pick<Ipvs, 'change' | 'listRealServers'>
  /**
   * Lists whole tables. Lists of one connection are read one after the other, so a change has a
   * connection of its own for the few that it needs.
   */
  readonly tables: Pick<Ipvs, 'listServers' | 'listRealServers'>
  readonly links: Pick<
    Links,
    'find' | 'ensureDummy' | 'addresses' | 'addAddresses' | 'deleteAddresses'
  >
  readonly sets: Pick<IpSets, 'restore' | 'list'>
  readonly members: Pick<IpSetMembers, 'change'>
  readonly rules: Pick<Rules, 'write' | 'differences'>
  readonly context: ModeContext
  readonly now: () => number
  /** These settings may change. */
  readonly settings: () => Pick<IpvsSettings, 'gracePeriodMs' | 'excluded' | 'verifyMs'>
  /** Connections of draining servers are counted this often. */
  readonly sweepMs: number
}

interface Written {
  readonly bytes: number
  readonly full: boolean
}

interface Outcome extends Applied {
  readonly failed: readonly Refusal[]
}

/** Writes plans to the kernel: ipsets, rules, virtual servers, addresses, in this order. */
export class IpvsApplier {
  readonly #deps: ApplierDeps
  readonly #draining: DrainingServers
  readonly #fallback: SchedulerFallback
  readonly #servers: ServerWriter
  readonly #known = knownByFamily<IpvsPlan>()
  readonly #refused: Readonly<Record<IpFamily, Refused>> = {
    IPv4: new Refused(),
    IPv6: new Refused(),
  }
  /** The plans written last, even where a part could not be written. */
  readonly #written = new Map<IpFamily, IpvsPlan>()
  /** The ids of what syncs change while the kernel is compared with what was written. */
  #moved: { readonly family: IpFamily; readonly ids: Set<string> } | undefined
  readonly #reported: Readonly<Record<IpFamily, Reported>>
  readonly #complaints: Complaints
  /** How often everything was written. */
  #fullWrites = 0
  /** Writes take turns, because a difference builds on the apply before it. */
  readonly #turns = new Turns()

  constructor(deps: ApplierDeps) {
    this.#deps = deps
    this.#complaints = new Complaints(deps.context.log)
    this.#draining = new DrainingServers(deps)
    this.#fallback = new SchedulerFallback(deps.context.log)
    this.#reported = { IPv4: new Reported(deps.context.log), IPv6: new Reported(deps.context.log) }
    const [draining, fallback] = [this.#draining, this.#fallback]
    this.#servers = new ServerWriter({ ipvs: deps.ipvs, draining, fallback })
  }

  apply(plan: IpvsPlan): Promise<Applied> {
    return this.#turns.take(async () => {
      const refused = this.#refused[plan.family]
      const applied = await this.#known[plan.family].update(async (known) => {
        const previous = refused.isDue(this.#deps.now(), this.#deps.settings().verifyMs)
          ? undefined
          : known
        const { failed, ...rest } = await (previous
          ? this.#update(plan, previous)
          : this.#reconcile(plan))
        for (const refusal of failed) refused.add(refusal)
        // After any other failure of a part the next apply compares everything.
        const now = failed.every(({ isAddition }) => isAddition) ? plan : undefined
        return { now, result: { ...rest, failed: refused.failures } }
      })
      this.#written.set(plan.family, plan)
      this.#report()
      return applied
    })
  }

  forget(): void {
    forgetAll(this.#known)
  }

  /** Lets connections drain and compares the kernel with what was written, until the signal. */
  async run(signal: AbortSignal): Promise<void> {
    const { sweepMs, now } = this.#deps
    let verified = now()
    for (;;) {
      const { verifyMs } = this.#deps.settings()
      await pause(Math.min(sweepMs, verifyMs), signal)
      if (signal.aborted) break
      if (this.#draining.isActive) await this.sweep()
      if (now() - verified < verifyMs) continue
      await this.verify()
      verified = now()
    }
    await this.idle()
  }

  /** What was written last, a plan for each family. */
  get written(): readonly IpvsPlan[] {
    return [...this.#written.values()]
  }

  /** Resolves when nothing is being written. */
  async idle(): Promise<void> {
    await this.#turns.idle()
  }

  /** Deletes draining servers that are done. `run` calls it; it is public for tests. */
  async sweep(): Promise<void> {
    try {
      await this.#draining.sweep(this.#turns)
      this.#report()
    } catch (error) {
      this.#complaints.warn({ error: messageOf(error) }, 'could not look at draining servers')
    }
  }

  /**
   * Requests a sync when another program has changed what was applied. Syncs go on meanwhile. What
   * they change means nothing in this comparison. The kernel's list of virtual servers may lack some
   * that stayed if others went meanwhile, so what differs then is looked at again without syncs.
   */
  async verify(): Promise<void> {
    let isRead = true
    for (const family of this.#written.keys()) {
      try {
        const found = await this.#compareWritten(family, this.#turns)
        const { wrong } =
          found.wrong.length === 0 || found.isQuiet
            ? found
            : await this.#turns.take(() => this.#compareWritten(family, new Turns()))
        if (wrong.length === 0) continue
        this.#known[family].forget()
        const what = `${counted(wrong.length, 'difference')} from what was written to ${family} ipvs tables, the first: ${wrong[0]}`
        this.#deps.context.resync(what, { byOthers: true })
      } catch (error) {
        isRead = false
        this.#complaints.warn({ family, error: messageOf(error) }, 'could not verify ipvs tables')
      }
    }
    if (isRead) this.#complaints.settled()
  }

  /** The ids of what is not as it was written, and whether no sync has changed anything meanwhile. */
  async #compareWritten(family: IpFamily, turns: Pick<Turns, 'take' | 'idle'>) {
    const ids = new Set<string>()
    try {
      const before = await turns.take(() => {
        this.#moved = { family, ids }
        return Promise.resolve(this.#known[family].value)
      })
      // Where nothing is known, the next sync compares everything.
      if (!before) return { wrong: [], isQuiet: true }
      const view = await this.#read(family)
      const { lost, changed } = await this.#deps.rules.differences(family, before.chains)
      const changes = await compare(before, view, this.#options())
      await turns.idle()
      const reading = { fullSyncs: this.#fullWrites, mark: undefined, endMark: undefined }
      const fresh = () => this.#reported[family].fresh(changed, reading)
      const places = ids.has(theRules) ? [] : [...lost, ...fresh().map(({ chain }) => chain)]
      // A member may have come and gone meanwhile, so that no plan tells that it moved.
      const found = [...changedIds(changes), ...places.map((chain) => `chain ${chain}`)]
      const wrong = found.filter((id) => !ids.has(id) && !this.#refused[family].has(id))
      return { wrong, isQuiet: ids.size === 0 }
    } finally {
      this.#moved = undefined
    }
  }

  /** Compares the whole kernel with the plan, and writes what differs. */
  async #reconcile(plan: IpvsPlan): Promise<Outcome> {
    const { sets, links, now } = this.#deps
    this.#fullWrites++
    this.#fallback.forget(plan.family)
    this.#refused[plan.family].clear(now())
    links.ensureDummy(deviceName)
    const view = await this.#read(plan.family)
    const changes = await compare(plan, view, this.#options())
    changes.chains = plan.chains
    this.#touch(plan.family, changes)
    const batch = setBatch(plan, changes, view.sets)
    await sets.restore(batch)
    const bytes = batch.toString().length
    return this.#write(plan, changes, { bytes, full: true })
  }

  async #update(plan: IpvsPlan, previous: IpvsPlan): Promise<Outcome> {
    const changes = between(plan, previous)
    this.#touch(plan.family, changes)
    const added = memberChanges(plan.family, 'add', changes.addMembers)
    const bytes = await this.#deps.members.change(added)
    return this.#write(plan, changes, { bytes, full: false })
  }

  /** Writes all but new members of sets. `before` tells what was written so far. */
  async #write(plan: IpvsPlan, changes: Changes, before: Written): Promise<Outcome> {
    const { rules, links } = this.#deps
    const { family } = plan
    let { bytes } = before
    if (changes.chains) bytes += await rules.write(family, changes.chains)
    const failures = await this.#servers.change(plan, this.#servers.additions(changes))
    const device = links.ensureDummy(deviceName)
    const refused = await links.addAddresses(family, device, changes.addAddresses)
    const removed = changes.removeReals.map((change) => ({
      ...change,
      server: this.#fallback.effective(change.server),
    }))
    const leaving = await this.#draining.retire(removed)
    const removals = changes.removeServers.map((server): IpvsChange => ({
      do: 'delete-server',
      server,
    }))
    failures.push(...(await this.#servers.change(plan, [...leaving, ...removals])))
    await links.deleteAddresses(family, device, changes.removeAddresses)
    // Members come first and go last: they tell a later run which virtual servers are ours.
    if (failures.every(({ isAddition }) => isAddition)) {
      const plain = changes.removeMembers.filter(({ member }) => isPlainMember(member))
      const leftover = memberChanges(family, 'delete', plain)
      bytes += await this.#deps.members.change(leftover)
    }
    return {
      full: before.full,
      bytes,
      objects: countChanges(changes),
      failed: [
        ...failures,
        ...refused.map(({ ip, error }) => ({
          id: addressId(ip),
          key: ownerOf(plan, addressId(ip)),
          reason: error.message,
          isAddition: true,
        })),
      ],
    }
  }

  #read(family: IpFamily): Promise<KernelView> {
    const { tables, links, sets } = this.#deps
    return readKernel(family, { ipvs: tables, links, sets })
  }

  /** Called before these changes are written. */
  #touch(family: IpFamily, changes: Changes): void {
    const ids = changedIds(changes)
    this.#refused[family].forget(ids)
    if (this.#moved?.family !== family) return
    for (const id of ids) this.#moved.ids.add(id)
    if (changes.chains) this.#moved.ids.add(theRules)
  }

  #options(): CompareOptions {
    return {
      excluded: this.#deps.settings().excluded,
      isDraining: (server, key, { weight }) => weight === 0 && this.#draining.has({ server, key }),
      effective: (server) => this.#fallback.effective(server),
    }
  }

  #report(): void {
    for (const family of this.#written.keys()) {
      const count = this.#draining.count(family)
      this.#deps.context.meter.gauge('ipvs_draining_servers', { ip_family: family }, count)
    }
  }
}

/** Names the rules among the ids of resources. */
const theRules = 'the rules'
