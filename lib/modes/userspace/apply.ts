import type { IpFamily } from '../../state/ip.js'
import type { Applied, ServiceFailure } from '../mode.js'
import type { Listeners } from './listeners/listeners.js'
import { frontend, OwnFrontends, type Frontend } from './datapath/own-frontends.js'
import type { OpenFailure } from './listeners/messages.js'
import { ReservedNodePorts } from './portals/reserved-node-ports.js'
import type { ServicePlan, UserspacePlan } from './plan.js'
import type { PlacedRule } from './portals/sub-chains.js'
import type { EndpointList } from './portals/portal-rules.js'
import type { Redirections, UdpFlowCleaner } from './portals/udp-flow-cleaner.js'
import { placeRules } from './render.js'
import type { Portals } from './portals/portals.js'
import type { SourceKeeping } from './portals/source-keeping.js'

interface Parts {
  readonly listeners: Listeners
  readonly portals: Portals
  readonly flows: UdpFlowCleaner
  readonly sources: Pick<SourceKeeping, 'use'>
}

/** Keeps listeners, reserved node ports and rules of one family as the plan wants them. */
export class FamilyApplier {
  readonly #family: IpFamily
  readonly #parts: Parts
  readonly #nodePorts: ReservedNodePorts
  readonly #frontends = new OwnFrontends()
  /** The keys of the listeners of each service port. */
  readonly #held = new Map<string, readonly string[]>()
  #failed: ReadonlySet<string> = new Set()

  constructor(family: IpFamily, parts: Parts) {
    this.#family = family
    this.#parts = parts
    this.#nodePorts = new ReservedNodePorts(parts.listeners.descriptors)
  }

  /**
   * Opens listeners, then writes the rules that lead to them, then closes listeners that no rule
   * leads to any more. So no rule ever leads to a closed port. Without rules, listeners listen on
   * the addresses of Services: there an old listener closes before a new one opens.
   */
  async apply(plan: UserspacePlan, previous: UserspacePlan | undefined): Promise<Applied> {
    const { services, gone } = this.#difference(plan, previous)
    const { listeners, portals, flows, sources } = this.#parts
    const failures = new Map<string, ServiceFailure>()
    for (const { key, unsupported } of services) {
      if (unsupported !== undefined) failures.set(key, { key, reason: unsupported })
    }
    const full = previous === undefined
    if (portals.listensDirectly) await this.#closeUnused(services, gone)
    for (const failure of (await portals.prepare?.(services, { gone, full })) ?? []) {
      failures.set(failure.key, failure)
    }
    this.#hold(services)
    const hasSource = services.some(({ listeners }) => listeners.some(({ spec }) => spec.source))
    if (hasSource) await sources.use()
    const prepared = services.filter(({ key }) => !failures.has(key))
    await this.#listen(prepared, failures)
    await this.#noteFrontends(plan.localAddresses, services, { gone, full }, failures)
    for (const key of gone) this.#nodePorts.release(key)
    await this.#reserveNodePorts(services, failures)

    const rules = new Map<string, readonly PlacedRule[]>()
    for (const key of gone) if (previous) rules.set(key, [])
    for (const service of services) rules.set(service.key, this.#placeRules(service))
    // Without its address a client would wait for ever.
    const leave = (addresses: readonly string[]) => listeners.cut(addresses)
    const written = await (full ? portals.replaceAll(rules, leave) : portals.change(rules, leave))
    await flows.clean(this.#family, this.#redirections(written.changed, plan, previous))

    const closed = portals.listensDirectly ? 0 : await this.#closeUnused(services, gone)
    this.#failed = new Set(failures.keys())
    const { bytes, objects, isRepair = false } = written
    const result = { full: full || isRepair, bytes, objects, failed: [...failures.values()] }
    if (closed === 0 || failures.size === 0) return result
    // A listener may have failed for want of a port or descriptor that is free only now.
    const again = await this.apply(plan, plan)
    return {
      ...again,
      full: result.full,
      bytes: bytes + again.bytes,
      objects: objects + again.objects,
    }
  }

  /** The services to bring up to date, and the keys of those that were removed. */
  #difference(plan: UserspacePlan, previous: UserspacePlan | undefined) {
    if (!previous) {
      const services = [...plan.services.values()]
      return { services, gone: [...this.#held.keys()].filter((key) => !plan.services.has(key)) }
    }
    const { added, changed, removed } = plan.services.since(previous.services)
    const services = new Map<string, ServicePlan>()
    for (const [key, service] of [...added, ...changed]) services.set(key, service)
    // Failed services are tried again at each sync, which the original never did (US34).
    for (const key of this.#failed) {
      const service = plan.services.get(key)
      if (service) services.set(key, service)
    }
    return { services: [...services.values()], gone: removed.map(([key]) => key) }
  }

  /** Notes the listeners before they open, so that a sync that fails later does not lose them. */
  #hold(services: readonly ServicePlan[]): void {
    for (const { key, listeners } of services) {
      const wanted = listeners.map(({ spec }) => spec.key)
      this.#held.set(key, [...new Set([...(this.#held.get(key) ?? []), ...wanted])])
    }
  }

  async #listen(
    services: readonly ServicePlan[],
    failures: Map<string, ServiceFailure>,
  ): Promise<void> {
    const owners = new Map<string, string>()
    for (const { key, listeners } of services) {
      for (const { spec } of listeners) owners.set(spec.key, key)
    }
    const specs = services.flatMap(({ listeners }) => listeners.map(({ spec }) => spec))
    for (const failure of await this.#parts.listeners.ensure(specs)) {
      const key = owners.get(failure.key) ?? failure.key
      failures.set(key, { key, ...explain(failure) })
    }
  }

  /**
   * Tells the threads where Services answer, before rules lead packets there. Reports endpoints
   * that lead back to this proxy.
   */
  async #noteFrontends(
    localAddresses: readonly string[],
    services: readonly ServicePlan[],
    { gone, full }: { readonly gone: readonly string[]; readonly full: boolean },
    failures: Map<string, ServiceFailure>,
  ): Promise<void> {
    const portOf = (key: string) => this.#parts.listeners.portOf(key)
    const noted: (readonly [key: string, frontends: readonly Frontend[]])[] = [
      [this.#named(''), localAddresses],
      ...gone.map((key) => [this.#named(key), []] as const),
      ...services.map((one) => [this.#named(one.key), frontendsOf(one, portOf)] as const),
    ]
    const changed = noted.filter(([key, frontends]) => this.#frontends.set(key, frontends))
    // A full sync tells everything, because a thread may be new and know nothing yet.
    await this.#parts.listeners.note(full ? noted : changed)
    for (const { key, listeners } of services) {
      if (failures.has(key)) continue
      const [first] = listeners.flatMap(({ spec: { protocol, endpoints } }) =>
        endpoints.filter((target) => this.#frontends.has(protocol, target)),
      )
      if (!first) continue
      const reason = `endpoint ${first.key} leads back to this proxy and is not used`
      failures.set(key, { key, reason, event: 'EndpointLeadsBack' })
    }
  }

  /** The service port with its family, because the threads serve both families. */
  #named(key: string): string {
    return `${this.#family} ${key}`
  }

  async #reserveNodePorts(
    services: readonly ServicePlan[],
    failures: Map<string, ServiceFailure>,
  ): Promise<void> {
    // Releases come first: a Service may get the port that another gives up in the same sync.
    for (const { key, nodePort } of services) this.#nodePorts.release(key, nodePort)
    for (const { key, nodePort } of services) {
      const reason = nodePort && (await this.#nodePorts.reserve(key, nodePort))
      if (reason !== undefined) failures.set(key, { key, reason, event: 'PortConflict' })
    }
  }

  /** The next apply opens them again. */
  closeNodePorts(): void {
    this.#nodePorts.close()
  }

  #placeRules(service: ServicePlan): readonly PlacedRule[] {
    const ports: Partial<Record<EndpointList, string>> = {}
    for (const { list, spec } of service.listeners) {
      const port = this.#parts.listeners.portOf(spec.key)
      if (port !== undefined) ports[list] = String(port)
    }
    const ownsNodePort = this.#nodePorts.has(service.key)
    return placeRules(
      // While another program has the node port, the other addresses still work.
      service.rules.filter(({ isNodePort = false }) => ownsNodePort || !isNodePort),
      ports,
    )
  }

  /**
   * The UDP addresses of services with new rules, and the proxy ports they lead to now: none from an
   * address that a service gave up.
   */
  #redirections(
    keys: readonly string[],
    plan: UserspacePlan,
    previous: UserspacePlan | undefined,
  ): Redirections {
    const redirections = new Map<string, Set<number>>()
    for (const key of keys) {
      const service = plan.services.get(key)
      const before = previous?.services.get(key)?.udpFrontends ?? []
      const now = new Set(service?.udpFrontends)
      const ports = service ? this.#portsInUse(service) : []
      for (const frontend of [...before, ...now]) {
        const added = now.has(frontend) ? ports : []
        redirections.set(frontend, new Set([...(redirections.get(frontend) ?? []), ...added]))
      }
    }
    return redirections
  }

  /** Ports of the listeners that current rules lead to. */
  #portsInUse({ listeners, rules }: ServicePlan): readonly number[] {
    const lists = new Set(rules.map(({ target }) => ('list' in target ? target.list : undefined)))
    return listeners.flatMap(({ list, spec }) =>
      lists.has(list) ? (this.#parts.listeners.portOf(spec.key) ?? []) : [],
    )
  }

  /** Returns how many listeners it has closed. */
  async #closeUnused(services: readonly ServicePlan[], gone: readonly string[]): Promise<number> {
    const close: string[] = []
    for (const key of gone) {
      close.push(...(this.#held.get(key) ?? []))
      this.#held.delete(key)
    }
    for (const { key, listeners } of services) {
      const wanted = listeners.map(({ spec }) => spec.key)
      close.push(...(this.#held.get(key) ?? []).filter((old) => !wanted.includes(old)))
      this.#held.set(key, wanted)
    }
    await this.#parts.listeners.close(close)
    return close.length
  }
}

/** Where a Service answers: at its addresses, at its node port, and at its listeners themselves. */
function frontendsOf(
  { listeners, rules, nodePort, addresses }: ServicePlan,
  portOf: (listener: string) => number | undefined,
): readonly Frontend[] {
  const found = new Set<Frontend>(addresses)
  if (nodePort) found.add(frontend(nodePort.protocol, '', nodePort.port))
  for (const { table, protocol, destination = '', destinationPort, isNodePort } of rules) {
    if (table !== 'nat' || typeof destinationPort !== 'number' || isNodePort) continue
    found.add(frontend(protocol.toUpperCase(), destination, destinationPort))
  }
  for (const { spec } of listeners) {
    const port = portOf(spec.key)
    if (port !== undefined) found.add(frontend(spec.protocol, spec.address, port))
  }
  return [...found]
}

function explain({ code, message }: OpenFailure): Omit<ServiceFailure, 'key'> {
  if (code === 'ERANGE') return { reason: message, event: 'ProxyPortsExhausted' }
  const advice = code === 'EACCES' ? lowPorts : ''
  return { reason: `open a listener: ${message}${advice}`, event: 'ListenFailed' }
}

const lowPorts =
  '; low ports need CAP_NET_BIND_SERVICE, or a lower net.ipv4.ip_unprivileged_port_start'
