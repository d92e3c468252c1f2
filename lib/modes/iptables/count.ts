import type { Content } from './render.js'
import type { PersistentMap } from '../../state/persistent-map.js'
import type { ServiceRules } from './service-rules.js'

/** How many rules each table has. Jumps from built-in chains are not counted. */
export interface RuleCounts {
  readonly nat: number
  readonly filter: number
}

/** Counts rules without reading the kernel (IT51). The work is proportional to the change. */
export class RuleCounter {
  #services: PersistentMap<ServiceRules> | undefined
  readonly #ofServices = { nat: 0, filter: 0 }

  /** How many rules the kernel has with this content. */
  count({ fixed, services }: Content): RuleCounts {
    const { added, changed, removed } = services.since(this.#services)
    for (const [, service] of added) this.#add(service, 1)
    for (const [, service, before] of changed) {
      this.#add(service, 1)
      this.#add(before, -1)
    }
    for (const [, service] of removed) this.#add(service, -1)
    this.#services = services
    const total = { nat: this.#ofServices.nat + fixed.tail.length, filter: this.#ofServices.filter }
    for (const { table, rules } of fixed.chains) {
      if (table === 'nat' || table === 'filter') total[table] += rules.length
    }
    return total
  }

  #add({ chains, dispatch }: ServiceRules, sign: 1 | -1): void {
    const counts = this.#ofServices
    for (const { table, rules } of chains) {
      if (table === 'nat' || table === 'filter') counts[table] += sign * rules.length
    }
    for (const { table } of dispatch) {
      if (table === 'nat' || table === 'filter') counts[table] += sign
    }
  }
}
