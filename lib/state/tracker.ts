import { buildNodeView, type NodeSettings } from './node-view.js'
import type { EndpointRules } from './parse-endpoint-slice.js'
import { buildServicePorts, type PortNumber } from './service-ports.js'
import type { Substitutes } from './balance.js'
import { FailingEndpoints } from './endpoint-health.js'
import { withChanges, type HealthCheck } from './health-check-ports.js'
import { isEqual } from './json.js'
import { cidrsOf, type IpFamily } from './ip.js'
import { PersistentMap } from './persistent-map.js'
import type { Unsupported } from './unsupported.js'
import { newWarnings, type ServiceWarning } from './service-warnings.js'
import { PolicyCounts, type PolicyCount } from './policy-counts.js'
import { ServiceIndex, type ChangeListener } from './service-index.js'
import type { DesiredService, DesiredState } from './desired-state.js'
import type { ServicePortName } from './names.js'
import type {
  EndpointSliceObject,
  NodeObject,
  ServiceCidrObject,
  ServiceObject,
  ServicePortObject,
} from './objects.js'

export interface TrackerSettings extends NodeSettings {
  readonly families: readonly IpFamily[]
  readonly allowsExternalIps: boolean
  /**
   * The mode translates a connection only once, in the kernel. So an endpoint that is the ClusterIP
   * of a Service, even its own, would never answer: it is not used.
   */
  readonly translatesOnce?: boolean
  /** What the mode does instead of values of `kube-proxy-ts/balance` that it cannot do. */
  readonly substitutes?: Substitutes
  /** The annotations that the mode cannot do. */
  readonly unsupported?: readonly Unsupported[]
  /** Which addresses are refused as endpoints. */
  readonly endpointRules?: EndpointRules
  readonly noticed?: ChangeListener
}

/** What a sync works on: the states, and what has changed since the update before. */
export interface StateUpdate {
  readonly states: readonly DesiredState[]
  /** How many service ports differ from the update before. */
  readonly changed: ReadonlyMap<IpFamily, number>
  /** When the endpoint changes in this update happened, by family (E10). */
  readonly triggerTimes: ReadonlyMap<IpFamily, readonly number[]>
  /** By `namespace/name`: the health-check node ports to serve, and their answers. */
  readonly healthChecks: ReadonlyMap<string, HealthCheck>
  readonly withoutLocalEndpoints: readonly PolicyCount[]
  /** Warnings about Services that are new in this update. */
  readonly warnings: readonly ServiceWarning[]
}

/**
 * Collects changes between syncs and turns them into states. The order of the changes does not
 * matter. A change that is undone before the next `take` has no effect (S32).
 */
export class Tracker {
  readonly endpointRules: EndpointRules
  #settings: TrackerSettings
  readonly #index: ServiceIndex
  readonly #failing = new FailingEndpoints()
  readonly #serviceCidrs = new Map<string, ServiceCidrObject>()
  #node: NodeObject | undefined
  #localAddresses: readonly string[] = []
  /** Whether the node or the ServiceCIDRs may differ from the last states. */
  #nodeChanged = false
  #states: readonly DesiredState[]
  #healthChecks: ReadonlyMap<string, HealthCheck> = new Map<string, HealthCheck>()
  readonly #withoutLocal = new PolicyCounts()

  constructor(settings: TrackerSettings) {
    this.#settings = settings
    this.endpointRules = settings.endpointRules ?? {}
    this.#index = new ServiceIndex({
      followsEndpoints: settings.translatesOnce === true,
      noticed: settings.noticed,
    })
    this.#states = settings.families.map((family) =>
      Object.freeze({
        family,
        services: PersistentMap.empty<DesiredService>(),
        node: this.#nodeView(family),
        serviceCidrs: [],
      }),
    )
  }

  upsertService(service: ServiceObject): void {
    this.#index.setService(service)
  }

  removeService(namespace: string, name: string): void {
    this.#index.removeService(namespace, name)
  }

  upsertEndpointSlice(slice: EndpointSliceObject): void {
    this.#index.setSlice(slice)
  }

  removeEndpointSlice(namespace: string, name: string): void {
    this.#index.removeSlice(namespace, name)
  }

  /** The result of an active check: why an endpoint of a port fails; undefined: it works. */
  setEndpointHealth(port: ServicePortName, endpoint: string, reason: string | undefined): void {
    if (this.#failing.set(port, endpoint, reason)) this.#index.mark(port)
  }

  upsertServiceCidr(object: ServiceCidrObject): void {
    this.#serviceCidrs.set(object.name, object)
    this.#nodeChanged = true
  }

  removeServiceCidr(name: string): void {
    this.#serviceCidrs.delete(name)
    this.#nodeChanged = true
  }

  /**
   * This node's object, or undefined once it is gone. A node that registers anew has no object for
   * a moment, and then one without addresses and pod CIDRs. In both cases the last known values
   * stay.
   */
  setNode(node: NodeObject | undefined): void {
    const known = this.#node
    if (!node && known) return
    const zoneChanged = node?.zone !== known?.zone
    const kept = <T>(now: readonly T[] | undefined, before: readonly T[] | undefined) =>
      now && now.length > 0 ? now : (before ?? [])
    this.#node = node && {
      ...node,
      ips: kept(node.ips, known?.ips),
      podCidrs: kept(node.podCidrs, known?.podCidrs),
    }
    this.#nodeChanged = true
    // E18: zone hints depend on the zone, so the endpoints of every Service may change.
    if (zoneChanged) this.#index.markAll()
  }

  /** The settings count from the next states on. */
  setNodeSettings(settings: Pick<TrackerSettings, 'nodePortAddresses' | 'detectLocal'>): void {
    this.#settings = { ...this.#settings, ...settings }
    this.#nodeChanged = true
  }

  /** The addresses of this node's interfaces, in the order of the interfaces. */
  setLocalAddresses(addresses: readonly string[]): void {
    this.#localAddresses = addresses
    this.#nodeChanged = true
  }

  /** The slices of a Service. `explain` finds in them why an endpoint is not used. */
  endpointSlices(namespace: string, name: string): readonly EndpointSliceObject[] {
    return this.#index.slices(`${namespace}/${name}`)
  }

  /** This node with its last known values; undefined until its object has come. */
  get node(): NodeObject | undefined {
    return this.#node
  }

  /** Whether the object of this node exists. */
  get knowsNode(): boolean {
    return this.#node !== undefined
  }

  /** Whether the object of this node has told the ranges of its pods. */
  get knowsPodCidrs(): boolean {
    return this.#node !== undefined && this.#node.podCidrs.length > 0
  }

  /** The zone of this node; undefined when its object has none. */
  get zone(): string | undefined {
    return this.#node?.zone
  }

  /** The states after all changes so far. */
  take(): StateUpdate {
    const { dirty, triggerTimes } = this.#index.takeDirty()
    const previous = this.#states
    const warnings: ServiceWarning[] = []
    this.#states = previous.map((state) => this.#next(this.#withNode(state), dirty, warnings))
    this.#nodeChanged = false
    const changes = new Map<IpFamily, number>()
    for (const [index, state] of this.#states.entries()) {
      const { added, changed, removed } = state.services.since(previous[index]?.services)
      changes.set(state.family, added.length + changed.length + removed.length)
    }
    const services = Array.from(dirty, (id) => [id, this.#index.service(id)] as const)
    this.#healthChecks = withChanges(this.#healthChecks, services, (id) => this.#portsOf(id))
    return {
      states: this.#states,
      changed: changes,
      triggerTimes,
      healthChecks: this.#healthChecks,
      withoutLocalEndpoints: this.#withoutLocal.of(this.#settings.families),
      warnings: unique(warnings),
    }
  }

  #withNode(state: DesiredState): DesiredState {
    if (!this.#nodeChanged) return state
    const node = keepEqual(state.node, this.#nodeView(state.family))
    const serviceCidrs = keepEqual(state.serviceCidrs, this.#cidrsOf(state.family))
    return node === state.node && serviceCidrs === state.serviceCidrs
      ? state
      : Object.freeze({ ...state, node, serviceCidrs })
  }

  #next(state: DesiredState, dirty: ReadonlySet<string>, warnings: ServiceWarning[]): DesiredState {
    const services = state.services.update(this.#rebuilt(state, dirty, warnings))
    return services === state.services ? state : Object.freeze({ ...state, services })
  }

  /** The entries of the dirty Services that differ from those in `state`. */
  *#rebuilt(
    state: DesiredState,
    dirty: ReadonlySet<string>,
    warnings: ServiceWarning[],
  ): IterableIterator<[string, DesiredService | undefined]> {
    const { family } = state
    const context = {
      family,
      nodeName: this.#settings.nodeName,
      zone: this.#node?.zone,
      allowsExternalIps: this.#settings.allowsExternalIps,
      substitutes: this.#settings.substitutes ?? {},
      unsupported: this.#settings.unsupported ?? [],
      failing: (port: ServicePortName) => this.#failing.of(port),
    }
    const leadsTo = this.#settings.translatesOnce
      ? (ip: string, port: PortNumber) => this.#index.ownersOf(ip, port)[0]
      : () => undefined
    for (const id of dirty) {
      const service = this.#index.service(id)
      const ownerOf = (ip: string, port: ServicePortObject) =>
        this.#index.ownersOf(ip, port).find((owner) => owner !== id)
      const built = service
        ? buildServicePorts(service, this.#index.slices(id), { ...context, ownerOf, leadsTo })
        : []
      const keys = new Set(built.map(({ key }) => key))
      for (const key of this.#index.knownKeys(id, family)) {
        if (keys.has(key)) continue
        this.#withoutLocal.add(state.services.get(key), family, -1)
        yield [key, undefined]
      }
      this.#index.setKnownKeys(id, family, keys)
      for (const next of built) {
        const before = state.services.get(next.key)
        if (before && isEqual(before, next)) continue
        this.#withoutLocal.add(before, family, -1)
        this.#withoutLocal.add(next, family, 1)
        warnings.push(...newWarnings(before, next))
        yield [next.key, next]
      }
    }
  }

  /** The service ports of one Service, by family. */
  #portsOf(id: string) {
    return this.#states.map(({ family, services }) => {
      const keys = [...this.#index.knownKeys(id, family)]
      return [family, keys.flatMap((key) => services.get(key) ?? [])] as const
    })
  }

  #nodeView(family: IpFamily) {
    const input = { node: this.#node, localAddresses: this.#localAddresses }
    return buildNodeView(family, this.#settings, input)
  }

  /** The CIDRs of all ServiceCIDRs. Two objects may hold the same CIDR (R09). */
  #cidrsOf(family: IpFamily) {
    const texts = new Set([...this.#serviceCidrs.values()].flatMap(({ cidrs }) => cidrs))
    return cidrsOf(family, [...texts].sort())
  }
}

/** Removes repetitions: ports and families of one Service may give the same warning. */
function unique(warnings: readonly ServiceWarning[]): readonly ServiceWarning[] {
  return [...new Map(warnings.map((each) => [JSON.stringify(each), each])).values()]
}

function keepEqual<T>(previous: T, next: T): T {
  return isEqual(previous, next) ? previous : next
}
