import type { Assembler } from '../../../kernel/bpf/assembler.js'
import type { Register } from '../../../kernel/bpf/instructions.js'
import { memberKeyOf } from '../layout.js'
import type { View } from './view.js'

/**
 * Where things are in the stack frame of a program; offsets are from its end. Everything that is
 * handed to a helper is written before, padding as well.
 */
export const frame = {
  /** Key of `frontends`, 20 bytes at most. */
  key: -24,
  /** Index into `services`. */
  slot: -28,
  /** Index into `backends`. */
  place: -32,
  affinityKey: -48,
  affinityValue: -80,
  /** Key of `members`: the service's id, and the endpoint that was chosen. */
  member: -104,
  /** Value of `udpSockets`, and below it the key. */
  udpSocket: -144,
  socketCookie: -152,
  /** Key of `statistics`, and below it a value. */
  statisticsKey: -176,
  statistics: -248,
  /** Key of `open`, and below it another index into `backends`. */
  openKey: -272,
  otherPlace: -276,
} as const

/** Where an address and a port of two bytes are, in network order. */
export interface EndpointPlace {
  readonly base: Register
  readonly address: number
  readonly port: number
}

/** The endpoint that was chosen: it is a part of the key of `members`. */
export function endpointInFrame({ family }: View): EndpointPlace {
  const { address, port } = memberKeyOf(family)
  return { base: 'frame', address: frame.member + address, port: frame.member + port }
}

/** Uses r1. */
export function copyEndpoint(
  code: Assembler,
  view: View,
  from: EndpointPlace,
  to: EndpointPlace,
): void {
  for (let word = 0; word < view.words; word++) {
    code
      .load('r1', 'u32', from.base, from.address + 4 * word)
      .store('u32', to.base, to.address + 4 * word, 'r1')
  }
  code.load('r1', 'u16', from.base, from.port).store('u16', to.base, to.port, 'r1')
}
