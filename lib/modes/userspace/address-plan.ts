import type { DesiredService, Verdict } from '../../state/desired-state.js'
import { cidrContains, hostPort, parseIp } from '../../state/ip.js'
import type { EndpointList } from './plan.js'
import type { NodeFacts } from './portal-rules.js'

/** Where a listener stands when there are no rules to lead to it. */
export interface DirectPlace {
  readonly list: EndpointList
  readonly address: string
  readonly port: number
  /** `ip:port`, part of the listener's key. */
  readonly name: string
}

/**
 * Every address of a service port gets a listener of its own, for traffic that starts on this
 * machine. Where rules would refuse or drop there is no listener, and the kernel refuses.
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
  for (const ip of externalIps) listen(inside, ip, port)
  for (const ip of loadBalancerIps) if (mayNodeUse(service, facts)) listen(inside, ip, port)
  if (nodePort !== 0) {
    // These are reached from outside as well, and a listener cannot tell: the stricter list.
    for (const address of facts.claimAddresses ?? [facts.listenAddress]) {
      listen(listOf(external), address, nodePort)
    }
  }
  return [...places.values()]
}

/** Addresses that this machine has to have for that. */
export function virtualAddressesOf(
  service: DesiredService,
  places: readonly DirectPlace[],
): readonly string[] {
  const virtual = [service.clusterIp, ...service.externalIps, ...service.loadBalancerIps]
  return virtual.filter((ip) => places.some(({ address }) => address === ip))
}

/** The list for packets of this node itself to an external address (S18). */
export function listFromInside(service: DesiredService): EndpointList | undefined {
  const { external, externalPolicyLocal, clusterEndpoints } = service
  if (externalPolicyLocal && clusterEndpoints.length > 0) return 'cluster'
  return listOf(external)
}

function listOf(verdict: Verdict): EndpointList | undefined {
  return verdict === 'cluster' || verdict === 'local' ? verdict : undefined
}

function mayNodeUse({ sourceRanges }: DesiredService, { hostIp }: NodeFacts): boolean {
  const ip = hostIp === undefined ? undefined : parseIp(hostIp)
  if (sourceRanges.length === 0) return true
  return ip !== undefined && sourceRanges.some((range) => cidrContains(range, ip))
}
