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
 * endpoint are stale (CT03), and so are flows to Services that were removed since `previous`. Node
 * ports count on addresses of this node only (CT04).
 */
export function staleFlowTest(
  state: DesiredState,
  previous?: DesiredState,
): (flow: Pick<ServiceFlow, 'family' | 'destination' | 'answeredBy'>) => boolean {
  const frontends = frontendsOf(state, previous)
  return ({ family, destination, answeredBy }) => {
    const endpoints = family === state.family ? frontends.get(destination) : undefined
    return endpoints !== undefined && !endpoints.has(answeredBy)
  }
}

/** Whether a change since `previous` can have made flows stale (E20). */
export function mayHaveStaleFlows(
  state: DesiredState,
  previous: DesiredState | undefined,
): boolean {
  if (!previous) return true
  const { added, changed, removed } = state.services.since(previous.services)
  return [...added, ...changed, ...removed].some(([, service]) => service.protocol === 'UDP')
}

/** By `ip:port` of a Service: the endpoints that flows to this place may have. */
function frontendsOf(state: DesiredState, previous: DesiredState | undefined) {
  const frontends = new Map<string, Set<string>>()
  const add = (service: DesiredService, nodeAddresses: readonly string[], isLive: boolean) => {
    if (service.protocol !== 'UDP') return
    const endpoints = isLive ? service.servingEndpoints : []
    for (const destination of destinationsOf(service, nodeAddresses)) {
      const known = frontends.get(destination)
      // Two Services may have the same address and port. Flows to the endpoints of both are kept.
      if (known) for (const { key } of endpoints) known.add(key)
      else frontends.set(destination, new Set(endpoints.map(({ key }) => key)))
    }
  }
  for (const service of state.services.values()) add(service, state.node.nodePorts.addresses, true)
  if (previous) {
    const gone = state.services.since(previous.services)
    const addresses = previous.node.nodePorts.addresses
    for (const [, service] of gone.removed) add(service, addresses, false)
    // A changed Service may have lost an address or a node port.
    for (const [, , service] of gone.changed) add(service, addresses, false)
  }
  return frontends
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
