import type { Protocol } from '../../state/names.js'
import { nameHash } from '../name-hash.js'

/** Chains of fixed name, by table (IT01). */
export const chains = {
  /** nat: ClusterIPs and external addresses; filter: those of them without endpoints. */
  services: 'KUBE-SERVICES',
  /** nat: node ports; filter: health-check node ports that must get in. */
  nodePorts: 'KUBE-NODEPORTS',
  /** filter: external addresses and node ports without endpoints. */
  externalServices: 'KUBE-EXTERNAL-SERVICES',
  /** filter: what the source ranges of a load balancer did not let through. */
  proxyFirewall: 'KUBE-PROXY-FIREWALL',
  forward: 'KUBE-FORWARD',
  postrouting: 'KUBE-POSTROUTING',
  markMasquerade: 'KUBE-MARK-MASQ',
  /**
   * nat, ours: marks what does not come from pods, when pods have several CIDRs. Its name looks like
   * that of a deleted Service, so that kube-proxy removes it when it takes over.
   */
  markNonPods: 'KUBE-SVC-MARKNONPODSOURCE',
  /**
   * filter, ours, with --flows: tell the proxy what they refuse or drop. Their names look like those
   * of deleted Services, too, so that a full sync and the change to another mode remove them.
   */
  refused: 'KUBE-SVC-REFUSEDANDLOGGED',
  dropped: 'KUBE-SVC-DROPPEDANDLOGGED',
  blocked: 'KUBE-SVC-BLOCKEDANDLOGGED',
  /** In mangle, nat and filter: it is missing after another program flushed the tables (IT46). */
  canary: 'KUBE-PROXY-CANARY',
  /** Shared with kubelet: never flushed, never removed (IT11). */
  kubeletFirewall: 'KUBE-FIREWALL',
} as const

/** nat: kubelet filled it before 1.28; kube-proxy before 1.25 made it, empty, to jump to. */
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

/** Every prefix a chain of a service port or endpoint has had in any version (IT02, IT50). */
const servicePrefixes = {
  cluster: 'KUBE-SVC-',
  local: 'KUBE-SVL-',
  external: 'KUBE-EXT-',
  firewall: 'KUBE-FW-',
  endpoint: 'KUBE-SEP-',
  /** Before 1.24. */
  externalBefore124: 'KUBE-XLB-',
} as const

const anyServicePrefix = new RegExp(`^(${Object.values(servicePrefixes).join('|')})`)

export function isServiceChain(name: string): boolean {
  return anyServicePrefix.test(name)
}

const hashLength = 16

export interface ServiceChainNames {
  readonly cluster: string
  readonly local: string
  readonly external: string
  readonly firewall: string
}

export function serviceChainNames(portName: string, protocol: Protocol): ServiceChainNames {
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
