import { createHash } from 'node:crypto'
import type { Protocol } from '../../state/names.js'

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
  /** In mangle, nat and filter: it is missing after somebody flushed the tables (IT46). */
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
export const servicePrefixes = {
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

export interface ServiceChainNames {
  readonly cluster: string
  readonly local: string
  readonly external: string
  readonly firewall: string
}

export function serviceChainNames(portName: string, protocol: Protocol): ServiceChainNames {
  const hash = hashOf(portName + protocol.toLowerCase())
  return {
    cluster: servicePrefixes.cluster + hash,
    local: servicePrefixes.local + hash,
    external: servicePrefixes.external + hash,
    firewall: servicePrefixes.firewall + hash,
  }
}

export function endpointChainName(portName: string, protocol: Protocol, endpoint: string): string {
  return servicePrefixes.endpoint + hashOf(portName + protocol.toLowerCase() + endpoint)
}

const base32 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'

/** The first 16 characters of the SHA-256 in base32 (RFC 4648): 80 bits, ten bytes. */
function hashOf(text: string): string {
  const digest = createHash('sha256').update(text).digest()
  let out = ''
  for (let group = 0; group < 2; group++) {
    let bits = 0n
    for (let index = 0; index < 5; index++)
      bits = (bits << 8n) | BigInt(digest[group * 5 + index] ?? 0)
    for (let shift = 35n; shift >= 0n; shift -= 5n)
      out += base32.charAt(Number((bits >> shift) & 31n))
  }
  return out
}
