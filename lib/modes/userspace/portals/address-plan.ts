import type { DesiredService } from '../../../state/desired-state.js'
import { hostPort } from '../../../state/ip.js'
import { listFromInside, listOf, type EndpointList, type NodeFacts } from './portal-rules.js'

/** Where a listener stands when there are no rules to lead to it. */
export interface DirectPlace {
  readonly list: EndpointList
  readonly address: string
  readonly port: number
  /** `ip:port`, part of the listener's key. */
  readonly name: string
}

/**
 * Every address of a service port gets a listener of its own. Where rules would refuse or drop
 * there is no listener, and the kernel refuses. A listener cannot tell where its clients come in,
 * and cannot turn away those whom source ranges shut out: with any it does not stand there.
 */
export function directPlacesOf(service: DesiredService, facts: NodeFacts): readonly DirectPlace[] {
  const { clusterIp, externalIps, loadBalancerIps, port, nodePort, internal, external } = service
  const places = new Map<string, DirectPlace>()
  const listen = (list: EndpointList | undefined, address: string, at: number) => {
    const name = hostPort(address, at)
    if (list && !places.has(name)) places.set(name, { list, address, port: at, name })
  }
  listen(listOf(internal), clusterIp, port)
  const inside = listFromInside(service)
  const open = service.sourceRanges.length === 0 ? loadBalancerIps : []
  for (const ip of [...externalIps, ...open]) listen(inside, ip, port)
  if (nodePort !== 0) {
    // These are reached from outside as well, and a listener cannot tell: the stricter list.
    for (const address of nodePortAddressesOf(service, facts)) {
      listen(listOf(external), address, nodePort)
    }
  }
  return [...places.values()]
}

/** Never the wildcard for UDP, whose answers would come from the address the kernel likes best. */
function nodePortAddressesOf({ protocol }: DesiredService, facts: NodeFacts): readonly string[] {
  const { reserveAddresses, bindableAddresses, listenAddress, listensOnWildcard } = facts
  if (reserveAddresses) return reserveAddresses
  return protocol === 'UDP' && listensOnWildcard ? bindableAddresses : [listenAddress]
}

/** Addresses that this machine has to have for that, or else nobody would refuse. */
export function virtualAddressesOf(service: DesiredService): readonly string[] {
  return [...new Set([service.clusterIp, ...service.externalIps, ...service.loadBalancerIps])]
}
