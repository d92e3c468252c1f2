import type { ServiceFlow } from '../kernel/conntrack.js'
import type { DesiredService, DesiredState } from '../state/desired-state.js'
import { hostPort } from '../state/ip.js'

/**
 * Tells which UDP flows are stale: their endpoint no longer serves. The kernel sends every packet of
 * a tracked flow to the endpoint of its first packet, and a client that keeps sending keeps its flow
 * alive. So stale flows have to be deleted (CT01). Terminating endpoints that still serve keep their
 * flows (CT06). TCP and SCTP connections end by themselves (CT05).
 *
 * A flow that began before its rules existed has the Service address as its other end. That is no
 * endpoint, so the flow is stale (CT07). Unlike upstream, flows to a Service without any serving
 * endpoint are stale (CT03), and so are flows to Services that were removed since `previous`, and to
 * node ports at addresses where they answered then. Node ports count on addresses of this node only
 * (CT04).
 */
export function staleFlowTest(
  state: DesiredState,
  previous?: DesiredState,
  frontends = new UdpFrontends(),
): (flow: Pick<ServiceFlow, 'family' | 'destination' | 'answeredBy'>) => boolean {
  const ownersAt = frontends.follow(state)
  const left = leftSince(previous, state)
  const serving = new Map<DesiredService, ReadonlySet<string>>()
  // Flows lead to few Services, so endpoints of the others are not looked at.
  const servingOf = (service: DesiredService) => {
    const known = serving.get(service) ?? new Set(service.servingEndpoints.map(({ key }) => key))
    serving.set(service, known)
    return known
  }
  return ({ family, destination, answeredBy }) => {
    if (family !== state.family) return false
    const owners = ownersAt.get(destination)
    return owners
      ? !owners.some((owner) => servingOf(owner).has(answeredBy))
      : left.has(destination)
  }
}

/** Every `ip:port` that a UDP Service had at `previous`: it may have lost it since then. */
function leftSince(previous: DesiredState | undefined, state: DesiredState): ReadonlySet<string> {
  if (!previous) return new Set()
  const { addresses } = previous.node.nodePorts
  const { removed, changed } = state.services.since(previous.services)
  const before =
    state.node.nodePorts.addresses === addresses
      ? [...removed.map(([, was]) => was), ...changed.map(([, , was]) => was)]
      : [...previous.services.values()]
  return new Set(before.flatMap((service) => udpDestinations(service, addresses)))
}

/**
 * The UDP service ports of one family by `ip:port`. Two Services may have the same address and
 * port; flows to the endpoints of both are kept.
 */
export class UdpFrontends {
  readonly #owners = new Map<string, readonly DesiredService[]>()
  #state: DesiredState | undefined

  /** The service ports of this state. The work is proportional to what has changed. */
  follow(state: DesiredState): ReadonlyMap<string, readonly DesiredService[]> {
    const { addresses } = state.node.nodePorts
    let before = this.#state
    if (before && before.node.nodePorts.addresses !== addresses) {
      before = undefined
      this.#owners.clear()
    }
    this.#state = state
    const { added, changed, removed } = state.services.since(before?.services)
    for (const [, was] of removed) this.#move(was, addresses, [])
    for (const [, now, was] of changed) {
      this.#move(was, addresses, [])
      this.#move(now, addresses, [now])
    }
    for (const [, now] of added) this.#move(now, addresses, [now])
    return this.#owners
  }

  /** Takes a service port from its places, or puts it there. */
  #move(service: DesiredService, addresses: readonly string[], own: readonly DesiredService[]) {
    for (const place of udpDestinations(service, addresses)) {
      const others = this.#owners.get(place)?.filter((other) => other !== service) ?? []
      const owners = [...others, ...own]
      if (owners.length > 0) this.#owners.set(place, owners)
      else this.#owners.delete(place)
    }
  }
}

function udpDestinations(service: DesiredService, addresses: readonly string[]): string[] {
  return service.protocol === 'UDP' ? destinationsOf(service, addresses) : []
}

/** Whether a change since `previous` can have made flows stale (E20). */
export function mayHaveStaleFlows(
  state: DesiredState,
  previous: DesiredState | undefined,
): boolean {
  if (!previous) return true
  // A client may have come to a new address of the node before its rules did, and may stay at an old
  // one, where node ports no longer answer.
  if (state.node.nodePorts.addresses !== previous.node.nodePorts.addresses) return true
  const { added, changed, removed } = state.services.since(previous.services)
  return [...added, ...changed, ...removed].some(([, service]) => service.protocol === 'UDP')
}

/** Every `ip:port` under which clients reach a service port. */
export function destinationsOf(
  service: DesiredService,
  nodeAddresses: readonly string[],
): string[] {
  const { clusterIp, externalIps, loadBalancerIps, port, nodePort } = service
  const destinations = [clusterIp, ...externalIps, ...loadBalancerIps].map((ip) =>
    hostPort(ip, port),
  )
  if (nodePort > 0) destinations.push(...nodeAddresses.map((ip) => hostPort(ip, nodePort)))
  return destinations
}

/** Endpoints that are used or still serve. */
export function endpointKeys({
  servingEndpoints,
  reachableEndpoints,
}: DesiredService): ReadonlySet<string> {
  return new Set([...servingEndpoints, ...reachableEndpoints].map(({ key }) => key))
}
