import type { MapReference } from '../../../kernel/bpf/assembler.js'
import type { IpFamily } from '../../../state/ip.js'
import { wordsOf } from '../layout.js'
import { call } from './context.js'

/** The maps of one family that programs read. */
export type FamilyMaps = Maps<'frontends' | 'services' | 'backends' | 'members'>

type Maps<Name extends string> = Readonly<Record<Name, MapReference>>

/** The maps about sockets and clients of both families. They outlive the tables. */
export type SharedMaps = Maps<
  | ('connections' | 'datagrams' | 'affinity' | 'udpSockets')
  | ('open' | 'counted' | 'statistics' | 'refusals')
>

/** The maps with which programs report single connections. */
export type FlowMaps = Maps<'begun' | 'ring' | 'lost'>

/**
 * Which address of a call a program works on. An IPv6 socket may go to an IPv4 address, which is
 * then in the last word of the IPv6 address.
 */
export interface View {
  readonly family: IpFamily
  /** Where the address is in the context. */
  readonly address: number
  readonly words: 1 | 4
  /** An IPv4 address in a call of an IPv6 socket. */
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

/** What the code of all programs depends on. */
export interface ProgramParts {
  readonly maps: Readonly<Record<IpFamily, FamilyMaps>> & { readonly shared: SharedMaps }
  /** The kernel's number for the node's own network namespace. */
  readonly hostCookie: bigint
  /** Sockets of all network namespaces, or only of the node's. */
  readonly sockets: 'all' | 'node'
  /** Connected UDP sockets are translated, because they can be destroyed when their endpoint goes. */
  readonly connectedUdp: boolean
  /** The number of the map `open`. Connections counted in an older map are not counted in this. */
  readonly openNumber: number
  /** Undefined if nobody listens to single connections. */
  readonly flows: FlowMaps | undefined
}
