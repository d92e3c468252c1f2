import type { Protocol } from '../../state/names.js'
import { nameHash } from '../../state/sha256.js'

/** The chains with a fixed name (IT01). The comments say in which tables they are. */
export const chains = {
  /** nat: ClusterIPs and external addresses; filter: ClusterIPs without endpoints. */
  services: 'KUBE-SERVICES',
  /** nat: node ports; filter: health-check node ports, which must always be accepted. */
  nodePorts: 'KUBE-NODEPORTS',
  /** filter: external addresses and node ports without endpoints. */
  externalServices: 'KUBE-EXTERNAL-SERVICES',
  /** filter: packets that the source ranges of a load balancer did not let through. */
  proxyFirewall: 'KUBE-PROXY-FIREWALL',
  forward: 'KUBE-FORWARD',
  postrouting: 'KUBE-POSTROUTING',
  markMasquerade: 'KUBE-MARK-MASQ',
  /**
   * nat, unknown to kube-proxy: marks packets that are not from pods, if pods have several CIDRs.
   * The name looks like that of a deleted Service, so that kube-proxy removes it when it takes
   * over.
   */
  markNonPods: 'KUBE-SVC-MARKNONPODSOURCE',
  /**
   * filter, unknown to kube-proxy, with --flows: log what they refuse or drop to the proxy. Their
   * names look like those of deleted Services, too, so that a full sync and the change to another
   * mode remove them.
   */
  refused: 'KUBE-SVC-REFUSEDANDLOGGED',
  dropped: 'KUBE-SVC-DROPPEDANDLOGGED',
  blocked: 'KUBE-SVC-BLOCKEDANDLOGGED',
  /**
   * nat and filter, while a refused rule is looked for: rules that are for other chains. Nothing
   * jumps to it. The next full sync removes it, as above, if the process was killed.
   */
  trial: 'KUBE-SVC-RULESONTRIAL',
  /** mangle, nat and filter: if it is missing, another program deleted the chains (IT46). */
  canary: 'KUBE-PROXY-CANARY',
  /** filter: kubelet uses it, too, so it is never emptied or removed (IT11). */
  kubeletFirewall: 'KUBE-FIREWALL',
} as const

/**
 * nat: kubelet before 1.28 fills this chain. Before 1.25 kube-proxy made it, empty, as a target.
 */
export const markDrop = 'KUBE-MARK-DROP'

/** Whether all rules of the chain belong to us or to kube-proxy. */
export function isOwnChain(name: string): boolean {
  return fixedNames.has(name) || isServiceChain(name)
}

const fixedNames: ReadonlySet<string> = new Set(
  Object.values(chains).filter((name) => name !== chains.kubeletFirewall),
)

/** nfacct objects that count packets for /metrics (IT10, IT25). */
export const accounts = {
  invalidDropped: 'ct_state_invalid_dropped_pkts',
  localhostNodePorts: 'localhost_nps_accepted_pkts',
} as const

/** The prefixes of chains of service ports and endpoints, in all versions (IT02, IT50). */
const servicePrefixes = {
  cluster: 'KUBE-SVC-',
  local: 'KUBE-SVL-',
  external: 'KUBE-EXT-',
  firewall: 'KUBE-FW-',
  endpoint: 'KUBE-SEP-',
  /** Only versions before 1.24 have it. */
  externalBefore124: 'KUBE-XLB-',
} as const

const anyServicePrefix = new RegExp(`^(${Object.values(servicePrefixes).join('|')})`)

export function isServiceChain(name: string): boolean {
  return anyServicePrefix.test(name)
}

const hashLength = 16

export type ServiceChainNames = Readonly<ReturnType<typeof serviceChainNames>>

export function serviceChainNames(portName: string, protocol: Protocol) {
  const hash = nameHash(portName + protocol.toLowerCase(), hashLength)
  return {
    cluster: servicePrefixes.cluster + hash,
    local: servicePrefixes.local + hash,
    external: servicePrefixes.external + hash,
    firewall: servicePrefixes.firewall + hash,
  }
}

export function endpointChainName(portName: string, protocol: Protocol, endpoint: string): string {
  const hash = nameHash(portName + protocol.toLowerCase() + endpoint, hashLength)
  return servicePrefixes.endpoint + hash
}

/**
 * nat, unknown to kube-proxy: the rules of one group of endpoints. The name looks like that of a
 * Service's chain, so that kube-proxy removes it when it takes over.
 */
export function groupChainName(portName: string, protocol: Protocol, group: string): string {
  const hash = nameHash(`${portName}${protocol.toLowerCase()} ${group}`, hashLength)
  return servicePrefixes.cluster + hash
}
