import type { Slice } from '../../async.js'
import { openTogether } from '../../kernel/bpf/map.js'
import { loadProgram, type Hook } from '../../kernel/bpf/program.js'
import type { SystemCalls } from '../../kernel/bpf/system-calls.js'
import { ipFamilies, type IpFamily } from '../../state/ip.js'
import type { KnownByFamily } from '../known.js'
import type { Attachment } from './attachment.js'
import { damageTo } from './damage.js'
import { programPrefix } from './names.js'
import type { SocketPlan } from './plan.js'
import { programs, socketHooks } from './programs/programs.js'
import type { ProgramParts } from './programs/view.js'
import type { OpenSharedMaps } from './shared-maps.js'
import { FamilyTables, sizesFor, TablesFull } from './tables.js'

interface SocketApplierDeps extends Omit<ProgramParts, 'maps' | 'openNumber'> {
  readonly calls: SystemCalls
  readonly attachment: Attachment
  readonly shared: Pick<OpenSharedMaps, 'maps' | 'countAnew'>
  readonly known: KnownByFamily<SocketPlan>
  readonly now: () => number
}

export interface SocketsApplied {
  readonly full: boolean
  readonly objects: number
  /** Some sockets may still use endpoints that are gone, or to which their address leads no more. */
  readonly hasLost: boolean
  /** Connected UDP sockets may have been closed while no program saw it. */
  readonly hasMissed: boolean
}

type Tables = Readonly<Record<IpFamily, FamilyTables>>

/** Writes plans into maps, and attaches the programs that read these maps. */
export class SocketApplier {
  readonly #deps: SocketApplierDeps
  #tables: Tables

  constructor(deps: SocketApplierDeps) {
    this.#deps = deps
    this.#tables = { IPv4: this.#newTables('IPv4'), IPv6: this.#newTables('IPv6') }
  }

  /** The tables of a family that programs read now. */
  tables(family: IpFamily): FamilyTables {
    return this.#tables[family]
  }

  apply(plan: SocketPlan): Promise<SocketsApplied> {
    return this.#deps.known[plan.family].update((previous) =>
      Promise.resolve({ now: plan, result: this.#write(plan, previous) }),
    )
  }

  /** Says what somebody else changed in the maps; undefined: nothing. */
  async damage(slice: Slice): Promise<string | undefined> {
    for (const family of ipFamilies) {
      // While one family was compared, the other may have got new tables.
      const tables = this.#tables[family]
      const damage = await damageTo(tables, () => this.#deps.known[family].value, slice)
      if (damage !== undefined) return damage
    }
    return undefined
  }

  close(): void {
    for (const tables of Object.values(this.#tables)) tables.close()
  }

  #write(plan: SocketPlan, previous: SocketPlan | undefined): SocketsApplied {
    if (!previous) return this.#renew(plan)
    try {
      const tables = this.#tables[plan.family]
      const objects = tables.write(plan, previous)
      return { full: false, objects, hasLost: tables.takeLost(), hasMissed: false }
    } catch (error) {
      if (error instanceof TablesFull) return this.#renew(plan)
      throw error
    }
  }

  /** Makes new tables. Programs that read them are attached when the tables are complete. */
  #renew(plan: SocketPlan): SocketsApplied {
    const tables = this.#newTables(plan.family, plan)
    let [objects, hasMissed] = [0, false]
    try {
      objects = tables.write(plan, undefined)
      hasMissed = this.#attach({ ...this.#tables, [plan.family]: tables })
    } catch (error) {
      tables.close()
      throw error
    }
    this.#tables[plan.family].close()
    this.#tables = { ...this.#tables, [plan.family]: tables }
    // Nobody knows which endpoints went after an earlier process ended or a write failed.
    return { full: true, objects, hasLost: true, hasMissed }
  }

  /** Returns what `hasMissed` says. */
  #attach(tables: Tables): boolean {
    const { calls, attachment, shared, ...parts } = this.#deps
    // Connections that ended while these programs were missing would count as open for ever.
    const hasGap = !attachment.has('sock_ops') || !attachment.has('sock_release')
    if (hasGap) shared.countAnew()
    const maps = { ...tables, shared: shared.maps }
    const openNumber = shared.maps.open.id
    const loaded = loadAll(calls, { ...parts, maps, openNumber })
    try {
      for (const [hook, program] of loaded) attachment.put(hook, program)
    } finally {
      for (const program of loaded.values()) calls.close(program)
    }
    return hasGap && parts.connectedUdp
  }

  #newTables(family: IpFamily, plan?: SocketPlan): FamilyTables {
    return new FamilyTables(this.#deps.calls, family, sizesFor(plan), this.#deps.now)
  }
}

/** Loads all programs or none. The caller closes the descriptors. */
export function loadAll(calls: SystemCalls, parts: ProgramParts): ReadonlyMap<Hook, number> {
  return openTogether((open) => {
    const load = (hook: Hook) => {
      const code = programs[hook](parts)
      const fd = loadProgram(calls, { name: `${programPrefix}${hook}`, hook, code })
      open({ close: () => calls.close(fd) })
      return fd
    }
    return new Map(socketHooks.map((hook) => [hook, load(hook)]))
  })
}
