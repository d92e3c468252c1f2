import type { Assembler, MapReference, MemoryPlace } from '../../../kernel/bpf/assembler.js'
import type { Register, Size } from '../../../kernel/bpf/instructions.js'
import { memberKeyOf } from '../layout.js'
import type { View } from './view.js'

/**
 * Where things are in the stack frame of a program. Offsets count from its end, and each begins a
 * slot of eight bytes. Only whole slots are written: without CAP_PERFMON, kernels up to 6.12 take a
 * store into a part of a slot with a known number for an attempt to forge a pointer.
 */
export const frame = {
  /** Key of `frontends`, 20 bytes at most. */
  key: -24,
  /** Index into `services`. */
  slot: -32,
  /** Index into `backends`. */
  place: -40,
  affinityKey: -56,
  affinityValue: -88,
  /** Key of `members`: the service's id, and the endpoint that was chosen. */
  member: -112,
  /** Value of `udpSockets`, and below it the key. */
  udpSocket: -152,
  socketCookie: -160,
  /** Key of `statistics`, and below it a value. */
  statisticsKey: -184,
  statistics: -256,
  /** Key of `open`, and below it another index into `backends`. */
  openKey: -280,
  otherPlace: -288,
  /** The id of the service that was found. */
  serviceId: -296,
} as const

/** Where the number for a field is read. */
export interface Place {
  readonly base: Register
  readonly at: number
  readonly size: Size
}

/** One number of an entry that is written to the frame. */
export interface Field {
  readonly at: number
  /** A constant, a register other than r1 and r2 with no more bits than the field, or a place in memory. */
  readonly value: number | Register | Place
}

const slotBytes = 8
const ifMissing = 1

export const serviceId: Place = { base: 'frame', at: frame.serviceId, size: 'u32' }

/** Writes an entry of this size to the frame: the fields, and zeros elsewhere. Uses r1 and r2. */
export function writeFrame(
  code: Assembler,
  at: number,
  bytes: number,
  fields: readonly Field[],
): void {
  for (let slot = 0; slot < bytes; slot += slotBytes) {
    code.set('r1', 0)
    for (const field of fields) {
      if (field.at >= slot && field.at < slot + slotBytes) addField(code, field, field.at - slot)
    }
    code.store('u64', 'frame', at + slot, 'r1')
  }
}

function addField(code: Assembler, { value }: Field, byte: number): void {
  if (typeof value === 'object') code.load('r2', value.size, value.base, value.at)
  else code.set('r2', value)
  if (byte > 0) code.compute('shift left', 'r2', 8 * byte)
  code.compute('or', 'r1', 'r2')
}

/** Writes a single number to the beginning of a slot. */
export function writeNumber(code: Assembler, at: number, value: Field['value']): void {
  writeFrame(code, at, slotBytes, [{ at: 0, value }])
}

/**
 * Leaves in r0 where the map has the numbers for a key. Missing ones are made, and are zero. The
 * program goes to `found` at once if they are there; later r0 is 0 if the map is full.
 */
export function findOrMake(
  code: Assembler,
  map: MapReference,
  { key, bytes, found }: { key: MemoryPlace; bytes: number; found: string },
): void {
  code.lookUpAt(map, key).jumpIf('r0', '!=', 0, found)
  writeFrame(code, frame.statistics, bytes, [])
  // The map is asked again in any case: another processor may have made the numbers meanwhile.
  code.update(map, key, frame.statistics, ifMissing).lookUpAt(map, key)
}

/** Where an address and a port of two bytes are. Both are in network order. */
export interface EndpointPlace {
  readonly base: Register
  readonly address: number
  readonly port: number
}

/** Where the chosen endpoint is: it is a part of the key of `members`. */
export function endpointInFrame({ family }: View): EndpointPlace {
  const { address, port } = memberKeyOf(family)
  return { base: 'frame', address: frame.member + address, port: frame.member + port }
}

/** The chosen endpoint as fields of an entry that has the address and the port at these offsets. */
export function chosenEndpoint(
  view: View,
  to: { readonly address: number; readonly port: number },
): readonly Field[] {
  return endpointFields(view, endpointInFrame(view), to)
}

function endpointFields(
  { words }: View,
  { base, address, port }: EndpointPlace,
  to: { readonly address: number; readonly port: number },
): readonly Field[] {
  return [
    ...addressFields(words, { base, at: address, size: 'u32' }, to.address),
    { at: to.port, value: { base, at: port, size: 'u16' } },
  ]
}

/** An address as fields, one for each word. */
export function addressFields(words: number, from: Place, at: number): readonly Field[] {
  return Array.from({ length: words }, (_, word) => ({
    at: at + 4 * word,
    value: { ...from, at: from.at + 4 * word },
  }))
}

/** Writes the key of `members` for the found service and this endpoint. */
export function writeMember(code: Assembler, view: View, endpoint: readonly Field[]): void {
  const { id, bytes } = memberKeyOf(view.family)
  writeFrame(code, frame.member, bytes, [{ at: id, value: serviceId }, ...endpoint])
}

/** Makes the endpoint at this place the chosen one. */
export function chooseFrom(code: Assembler, view: View, from: EndpointPlace): void {
  writeMember(code, view, endpointFields(view, from, memberKeyOf(view.family)))
}

/** Writes the chosen endpoint to memory that is not the frame. Uses r1. */
export function copyEndpoint(code: Assembler, view: View, to: EndpointPlace): void {
  const from = endpointInFrame(view)
  code
    .copyWords(view.words, [from.base, from.address], [to.base, to.address])
    .load('r1', 'u16', from.base, from.port)
    .store('u16', to.base, to.port, 'r1')
}
