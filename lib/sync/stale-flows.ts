import type { UdpFlow } from '../kernel/conntrack.js'
import type { DesiredService, DesiredState } from '../state/desired-state.js'
import { hostPort } from '../state/ip.js'

/**
 * Tells which UDP flows have outlived their endpoint. The kernel sends every packet of a tracked
 * flow where its first one went, and a chatty client keeps its flow alive for good, so flows to a
 * Service whose endpoint is no longer serving have to be deleted (CT01). Terminating endpoints
 * that still serve keep theirs (CT06); TCP and SCTP end by themselves (CT05).
 *
 * A flow that met no rule yet is answered by the Service address itself, which is no endpoint, so
 * it goes too (CT07). Unlike upstream, a Service without any serving endpoint is cleaned as well
 * (CT03), node ports count on this node's own addresses only (CT04), and flows to Services that
 * were removed since `previous` end with them.
 */
export function staleFlowTest(
  state: DesiredState,
  previous?: DesiredState,
): (flow: UdpFlow) => boolean {
  const frontends = frontendsOf(state, previous)
  return ({ family, destination, answeredBy }) => {
    const endpoints = family === state.family ? frontends.get(destination) : undefined
    return endpoints !== undefined && !endpoints.has(answeredBy)
  }
}

/** The flows among `flows` that should be deleted. */
export function staleFlows(
  state: DesiredState,
  flows: readonly UdpFlow[],
  previous?: DesiredState,
): readonly UdpFlow[] {
  return flows.filter(staleFlowTest(state, previous))
}

/** Whether anything changed that can have left stale flows behind (E20). */
export function mayHaveStaleFlows(
  state: DesiredState,
  previous: DesiredState | undefined,
): boolean {
  if (!previous) return true
  const { added, changed, removed } = state.services.since(previous.services)
  return [...added, ...changed, ...removed].some(([, service]) => service.protocol === 'UDP')
}

/** Maps each address and port to the endpoints that flows to it may have. */
function frontendsOf(state: DesiredState, previous: DesiredState | undefined) {
  const frontends = new Map<string, Set<string>>()
  const add = (service: DesiredService, nodeAddresses: readonly string[], isLive: boolean) => {
    if (service.protocol !== 'UDP') return
    const endpoints = isLive ? service.servingEndpoints : []
    for (const destination of destinationsOf(service, nodeAddresses)) {
      const known = frontends.get(destination)
      // Two Services may name one address and port. The flows of both are kept.
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

function destinationsOf(service: DesiredService, nodeAddresses: readonly string[]): string[] {
  const { clusterIp, externalIps, loadBalancerIps, port, nodePort } = service
  const destinations = [clusterIp, ...externalIps, ...loadBalancerIps].map((ip) =>
    hostPort(ip, port),
  )
  if (nodePort > 0) destinations.push(...nodeAddresses.map((ip) => hostPort(ip, nodePort)))
  return destinations
}
