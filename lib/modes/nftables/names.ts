import type { BaseHook, L4Protocol, NftFamily, NftSet } from '../../kernel/nftables/model.js'
import type { IpFamily } from '../../state/ip.js'
import type { Protocol, ServicePortName } from '../../state/names.js'
import { nameHash } from '../../state/sha256.js'
import { powerOfFour } from '../shares.js'

/** Names and layout of table kube-proxy (NF01-NF09), as in upstream's nftables mode. */

export const tableName = 'kube-proxy'
export const tableComment = 'rules for kube-proxy'

export function nftFamilyOf(family: IpFamily): NftFamily {
  return family === 'IPv4' ? 'ip' : 'ip6'
}

/** Priorities of the kernel's hooks; NAT of destinations happens at dstnat, so -110 is before it. */
const filter = 0
const dstnat = -100
const beforeDstnat = dstnat - 10
const srcnat = 100

/** NF02: where the kernel enters the table. */
export const baseChains: readonly { readonly name: string; readonly base: BaseHook }[] = [
  // Before DNAT the packet still carries the address it was sent to: source ranges are checked there.
  chainAt('filter-prerouting-pre-dnat', 'filter', 'prerouting', beforeDstnat),
  chainAt('filter-output-pre-dnat', 'filter', 'output', beforeDstnat),
  // A packet that still carries a Service address after DNAT found no endpoint.
  chainAt('filter-input', 'filter', 'input', filter),
  chainAt('filter-forward', 'filter', 'forward', filter),
  chainAt('filter-output', 'filter', 'output', filter),
  chainAt('nat-prerouting', 'nat', 'prerouting', dstnat),
  chainAt('nat-output', 'nat', 'output', dstnat),
  chainAt('nat-postrouting', 'nat', 'postrouting', srcnat),
]

export const chains = {
  // dispatch
  services: 'services',
  // no endpoints
  serviceEndpointsCheck: 'service-endpoints-check',
  nodePortEndpointsCheck: 'nodeport-endpoints-check',
  clusterIpsCheck: 'cluster-ips-check',
  reject: 'reject-chain',
  /** Only this program has it, with --flows. It logs what it drops to the proxy. */
  drop: 'drop-chain',
  // source ranges
  firewallCheck: 'firewall-check',
  // masquerade
  markForMasquerade: 'mark-for-masquerade',
  masquerading: 'masquerading',
} as const

/** NF03: the jumps, in order. With `onlyNew` only the first packet of a connection jumps. */
export const jumps: readonly {
  readonly from: string
  readonly to: string
  readonly onlyNew: boolean
}[] = [
  { from: 'filter-input', to: chains.nodePortEndpointsCheck, onlyNew: true },
  { from: 'filter-input', to: chains.serviceEndpointsCheck, onlyNew: true },
  { from: 'filter-forward', to: chains.serviceEndpointsCheck, onlyNew: true },
  { from: 'filter-output', to: chains.serviceEndpointsCheck, onlyNew: true },
  { from: 'filter-prerouting-pre-dnat', to: chains.firewallCheck, onlyNew: true },
  { from: 'filter-output-pre-dnat', to: chains.firewallCheck, onlyNew: true },
  { from: 'nat-prerouting', to: chains.services, onlyNew: false },
  { from: 'nat-output', to: chains.services, onlyNew: false },
  { from: 'nat-postrouting', to: chains.masquerading, onlyNew: false },
  { from: 'filter-forward', to: chains.clusterIpsCheck, onlyNew: true },
  { from: 'filter-output', to: chains.clusterIpsCheck, onlyNew: true },
]

const destination = ['address', 'inet_proto', 'inet_service'] as const
const nodePort = ['inet_proto', 'inet_service'] as const

/** NF05-NF09: the sets and maps of every ruleset; affinity sets come and go with endpoints. */
export const sets = {
  clusterIps: {
    name: 'cluster-ips',
    key: ['address'],
    holds: 'keys',
    comment: 'Active ClusterIPs',
  },
  nodePortIps: {
    name: 'nodeport-ips',
    key: ['address'],
    holds: 'keys',
    comment: 'IPs that accept NodePort traffic',
  },
  hairpinConnections: {
    name: 'hairpin-connections',
    key: ['address', 'address', 'inet_proto', 'inet_service'],
    holds: 'keys',
    comment: 'service hairpin connections',
  },
  serviceIps: {
    name: 'service-ips',
    key: destination,
    holds: 'verdicts',
    comment: 'ClusterIP, ExternalIP and LoadBalancer IP traffic',
  },
  serviceNodePorts: {
    name: 'service-nodeports',
    key: nodePort,
    holds: 'verdicts',
    comment: 'NodePort traffic',
  },
  noEndpointServices: {
    name: 'no-endpoint-services',
    key: destination,
    holds: 'verdicts',
    comment: 'vmap to drop or reject packets to services with no endpoints',
  },
  noEndpointNodePorts: {
    name: 'no-endpoint-nodeports',
    key: nodePort,
    holds: 'verdicts',
    comment: 'vmap to drop or reject packets to service nodeports with no endpoints',
  },
  firewallIps: {
    name: 'firewall-ips',
    key: destination,
    holds: 'verdicts',
    comment: 'destinations that are subject to LoadBalancerSourceRanges',
  },
} as const satisfies Readonly<Record<string, NftSet>>

/** Endpoints of Services that are reached by ClusterIP alone, numbered from 0. */
export const endpointMaps: Readonly<Record<L4Protocol, NftSet>> = {
  tcp: endpointMap('tcp'),
  udp: endpointMap('udp'),
  sctp: endpointMap('sctp'),
}

function endpointMap(protocol: L4Protocol): NftSet {
  return {
    name: `${protocol}-endpoints`,
    key: ['address', 'inet_service', 'number'],
    holds: 'targets',
    protocol,
    comment: 'endpoints of services that have no address but their ClusterIP',
  }
}

/** Tells which shared chains choose the endpoints of a Service: those for its protocol and size. */
export interface Choice {
  readonly protocol: L4Protocol
  /** The range of numbers that are drawn, and the most endpoints that a Service may have. */
  readonly places: number
}

/** The chain for all Services whose endpoints are in {@link endpointMaps}. */
export const sharingChain = (protocol: L4Protocol) => `${protocol}-services`

export const choiceChain = ({ protocol, places }: Choice) => `${protocol}-up-to-${places}`

/** The number of places of Services that are in no {@link sizeSet}. */
export const smallestSize = powerOfFour(0)

/** The set of the Services that go to the chain of the same name. */
export function sizeSet(choice: Choice): NftSet | undefined {
  if (choice.places === smallestSize) return undefined
  return {
    name: choiceChain(choice),
    key: ['address', 'inet_service'],
    holds: 'keys',
    comment: `services of ${choice.places / 4 + 1} to ${choice.places} endpoints`,
  }
}

export const drawingChain = ({ protocol, places }: Choice) => `${protocol}-draw-${places}`

/** Prefixes of chains and sets that belong to one service port or one of its endpoints (NF13). */
type Prefix =
  | 'service'
  | 'local'
  | 'external'
  | 'firewall'
  | 'endpoint'
  | 'affinity'
  | 'clients'
  | 'places'
  | 'local-places'

/**
 * The longest name after the prefix. It leaves 16 of the kernel's 256 characters for the prefix.
 */
const baseLengthMax = 240

export function serviceBaseName(name: ServicePortName): string {
  return hashed(servicePath(name))
}

export function endpointBaseName(name: ServicePortName, ip: string, port: number): string {
  return hashed(`${servicePath(name)}__${ip.replaceAll(':', '.')}/${port}`)
}

export const groupBaseName = (name: ServicePortName, list: 'cluster' | 'local', group: number) =>
  hashed(`${servicePath(name)}__${list}/${group}`)

function servicePath({ namespace, name, protocol, port }: ServicePortName): string {
  return `${namespace}/${name}/${l4ProtocolOf(protocol)}/${port}`
}

export function prefixed(prefix: Prefix, baseName: string): string {
  return `${prefix}-${baseName}`
}

export function l4ProtocolOf(protocol: Protocol): L4Protocol {
  return l4Protocols[protocol]
}

const l4Protocols = { TCP: 'tcp', UDP: 'udp', SCTP: 'sctp' } as const

/**
 * Makes a name that nft accepts: other characters become dots, and a long name is cut. Names that
 * look alike afterwards still differ, because each begins with the hash of the full name.
 */
function hashed(name: string): string {
  const full = `${nameHash(name, 8)}-${name.replace(/[^A-Za-z0-9_./-]/g, '.')}`
  return full.length > baseLengthMax ? `${full.slice(0, baseLengthMax - 3)}...` : full
}

function chainAt(
  name: string,
  type: BaseHook['type'],
  hook: BaseHook['hook'],
  priority: number,
): { readonly name: string; readonly base: BaseHook } {
  return { name, base: { type, hook, priority } }
}
