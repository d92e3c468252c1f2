import type { DesiredService } from '../../../state/desired-state.js'
import { hostPort } from '../../../state/ip.js'
import { listFromInside, listOf, type EndpointList, type NodeFacts } from './portal-rules.js'

/** An address that a listener listens on where there are no rules. */
interface DirectPlace {
  readonly list: EndpointList
  readonly address: string
  readonly port: number
}

/**
 * Every address of a service port gets its own listener. An address gets none where rules would
 * refuse or drop; then the kernel refuses. A listener cannot tell where its clients come from, so
 * load-balancer addresses with source ranges get none.
 */
export function directPlacesOf(service: DesiredService, facts: NodeFacts): readonly DirectPlace[] {
  const { clusterIp, externalIps, loadBalancerIps, port, nodePort, internal, external } = service
  const places = new Map<string, DirectPlace>()
  const listen = (list: EndpointList | undefined, address: string, at: number) => {
    const name = hostPort(address, at)
    if (list && !places.has(name)) places.set(name, { list, address, port: at })
  }
  listen(listOf(internal), clusterIp, port)
  const inside = listFromInside(service)
  const open = service.sourceRanges.length === 0 ? loadBalancerIps : []
  for (const ip of [...externalIps, ...open]) listen(inside, ip, port)
  if (nodePort !== 0) {
    // Clients from outside use these addresses too, so the stricter list applies to all.
    for (const address of nodePortAddressesOf(service, facts)) {
      listen(listOf(external), address, nodePort)
    }
  }
  return [...places.values()]
}

/** UDP avoids the wildcard if it can: there the kernel would choose the source of replies. */
function nodePortAddressesOf({ protocol }: DesiredService, facts: NodeFacts): readonly string[] {
  const { nodePortCidrs, bindableAddresses, listenAddress, listensOnWildcard } = facts
  if (nodePortCidrs) return bindableAddresses
  const isKnown = bindableAddresses.length > 0
  return protocol === 'UDP' && listensOnWildcard && isKnown ? bindableAddresses : [listenAddress]
}

/** Addresses that this machine needs. Where nothing listens on one, the kernel refuses clients. */
export function virtualAddressesOf(service: DesiredService): readonly string[] {
  return [...new Set([service.clusterIp, ...service.externalIps, ...service.loadBalancerIps])]
}
