import type { MapReference } from '../../../kernel/bpf/assembler.js'
import type { IpFamily } from '../../../state/ip.js'
import { wordsOf } from '../layout.js'
import { call } from './context.js'

/** The maps of one family that programs look into. */
export interface FamilyMaps {
  readonly frontends: MapReference
  readonly services: MapReference
  readonly backends: MapReference
  readonly members: MapReference
}

/** What is not of one family: it outlives the tables, because it is about sockets and clients. */
export interface SharedMaps {
  readonly connections: MapReference
  readonly datagrams: MapReference
  readonly affinity: MapReference
  readonly udpSockets: MapReference
  readonly open: MapReference
  readonly counted: MapReference
  readonly statistics: MapReference
  readonly refusals: MapReference
}

/** What single connections are told by, beside the numbers. */
export interface FlowMaps {
  readonly begun: MapReference
  readonly ring: MapReference
  readonly lost: MapReference
}

/**
 * Which address of a call a program works on. A socket of IPv6 may go to an IPv4 address, which then
 * stands in the last word of the IPv6 one.
 */
export interface View {
  readonly family: IpFamily
  /** Where the address is in the context. */
  readonly address: number
  readonly words: 1 | 4
  /** Where the socket's own address is in `struct bpf_sock`. */
  readonly isMapped: boolean
}

const viewOf = (family: IpFamily, address: number, isMapped: boolean): View => ({
  family,
  address,
  words: wordsOf(family),
  isMapped,
})

export const views = {
  ip4: viewOf('IPv4', call.ip4, false),
  ip6: viewOf('IPv6', call.ip6, false),
  mapped: viewOf('IPv4', call.ip6 + 12, true),
} as const

/** What all programs are made of. */
export interface ProgramParts {
  readonly maps: Readonly<Record<IpFamily, FamilyMaps>> & { readonly shared: SharedMaps }
  /** The kernel's number for the node's own network namespace. */
  readonly hostCookie: bigint
  /** Sockets of all network namespaces, or only of the node's. */
  readonly sockets: 'all' | 'node'
  /** Connected UDP sockets are translated, because they can be destroyed when their endpoint goes. */
  readonly connectedUdp: boolean
  /** The number of the map `open`. What was counted in another one is not counted in this. */
  readonly openNumber: number
  /** Undefined where nobody listens to single connections. */
  readonly flows: FlowMaps | undefined
}
