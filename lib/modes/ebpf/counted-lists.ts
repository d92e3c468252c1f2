import type { SocketPlan, TargetList } from './plan.js'
import { targetId } from './layout.js'

export interface ServiceLabels {
  /** `namespace/name:port` */
  readonly service: string
  readonly protocol: string
}

/** What an entry of the statistics is about. */
interface CountedKey {
  readonly id: number
  /** `address:port`; empty for the service as a whole. */
  readonly endpoint: string
}

interface Listed {
  readonly labels: ServiceLabels
  readonly list: TargetList
  endpoints: ReadonlySet<string> | undefined
}

/** Finds the service port of a target list. The programs count by the number of the list alone. */
export class CountedLists {
  readonly #plans: readonly SocketPlan[]
  /** By number. The two families of a Service share one; other lists may share one by chance. */
  readonly #listed = new Map<number, Listed[]>()

  constructor(plans: readonly SocketPlan[]) {
    this.#plans = plans
    for (const { parts } of plans) {
      for (const [key, { targets }] of parts.entries()) {
        const slash = key.lastIndexOf('/')
        const labels = { service: key.slice(0, slash), protocol: key.slice(slash + 1) }
        for (const list of targets)
          this.#add(targetId(list.id), { labels, list, endpoints: undefined })
      }
    }
  }

  isOf(plans: readonly SocketPlan[]): boolean {
    return (
      plans.length === this.#plans.length &&
      plans.every(({ parts }, index) => parts === this.#plans[index]?.parts)
    )
  }

  /** Undefined when no plan has such a list. */
  labelsOf({ id, endpoint }: CountedKey): ServiceLabels | undefined {
    const listed = this.#listed.get(id) ?? []
    const one =
      listed.length > 1 ? listed.find((each) => endpointsOf(each).has(endpoint)) : undefined
    return (one ?? listed[0])?.labels
  }

  /** Whether new connections may still go to this endpoint. */
  has({ id, endpoint }: CountedKey): boolean {
    const listed = this.#listed.get(id) ?? []
    return listed.some((each) => endpoint === '' || endpointsOf(each).has(endpoint))
  }

  #add(id: number, listed: Listed): void {
    const others = this.#listed.get(id)
    if (others) others.push(listed)
    else this.#listed.set(id, [listed])
  }
}

/** A function that gives the lists of plans. It makes them anew only if the plans have changed. */
export function countedLists(): (plans: readonly SocketPlan[]) => CountedLists {
  let lists = new CountedLists([])
  return (plans) => {
    if (!lists.isOf(plans)) lists = new CountedLists(plans)
    return lists
  }
}

function endpointsOf(listed: Listed): ReadonlySet<string> {
  const { endpoints, kept } = listed.list
  return (listed.endpoints ??= new Set([...endpoints, ...kept].map(({ key }) => key)))
}
