import type { Assembler } from '../../../kernel/bpf/assembler.js'
import type { MapReference } from '../../../kernel/bpf/assembler.js'
import type { Register } from '../../../kernel/bpf/instructions.js'
import { datagrams, familyNumbers, memberKeyOf, translation } from '../layout.js'
import { findMember } from './choose-endpoint.js'
import { call } from './context.js'
import { chooseFrom, copyEndpoint, frame, type EndpointPlace } from './frame.js'
import { countOpen, countOver, noteWhetherCounted } from './open-connections.js'
import type { ProgramParts, View } from './view.js'

const createIfMissing = 1

/** Leaves in r0 what the map keeps for the socket of the call, or 0 if there is nothing. */
export function ofSocket(code: Assembler, map: MapReference, how: 'find' | 'create'): void {
  code
    .mapAddress('r1', map)
    .load('r2', 'u64', 'r6', call.socket)
    .set('r3', 0)
    .set('r4', how === 'create' ? createIfMissing : 0)
    .call('sk_storage_get')
}

export function forgetConnection(code: Assembler, parts: ProgramParts): void {
  const { connections, counted } = parts.maps.shared
  const wasNone = code.freshLabel('was no connection')
  const forget = (map: MapReference) =>
    code.mapAddress('r1', map).load('r2', 'u64', 'r6', call.socket).call('sk_storage_delete')
  ofSocket(code, connections, 'find')
  code.jumpIf('r0', '==', 0, wasNone).set('r8', 'r0')
  countOver(code, parts, 'r8', 0)
  forget(connections)
  forget(counted).label(wasNone)
}

/** Writes where the call wanted to go, and the endpoint in the frame, to the memory at `base`. */
export function noteTranslation(code: Assembler, view: View, base: Register, at: number): void {
  for (let word = 0; word < view.words; word++) {
    code
      .load('r1', 'u32', 'r6', view.address + 4 * word)
      .store('u32', base, at + translation.original + 4 * word, 'r1')
  }
  copyEndpoint(code, view, backendAt(base, at))
  for (let word = view.words; word < 4; word++) {
    code.store('u32', base, at + translation.backend + 4 * word, 0)
  }
  code
    .load('r1', 'u32', 'r6', call.port)
    .store('u16', base, at + translation.originalPort, 'r1')
    .load('r1', 'u32', 'r6', call.protocol)
    .store('u8', base, at + translation.protocol, 'r1')
    .store('u8', base, at + translation.family, familyNumbers[view.family])
}

/** Goes to `otherwise` unless the call's address is that side of the translation at `base`. */
export function compareWithCall(
  code: Assembler,
  view: View,
  side: 'original' | 'backend',
  where: { readonly base: Register; readonly at: number; readonly otherwise: string },
): void {
  const { base, at, otherwise } = where
  const port = side === 'original' ? translation.originalPort : translation.backendPort
  code
    .load('r1', 'u8', base, at + translation.family)
    .jumpIf('r1', '!=', familyNumbers[view.family], otherwise)
    .load('r1', 'u16', base, at + port)
    .load('r2', 'u32', 'r6', call.port)
    .jumpIf('r1', '!=', 'r2', otherwise)
  for (let word = 0; word < view.words; word++) {
    code
      .load('r1', 'u32', base, at + translation[side] + 4 * word)
      .load('r2', 'u32', 'r6', view.address + 4 * word)
      .jumpIf('r1', '!=', 'r2', otherwise)
  }
}

/** Sends the call to the endpoint in the frame. */
export function sendToEndpoint(code: Assembler, view: View): void {
  const member = memberKeyOf(view.family)
  for (let word = 0; word < view.words; word++) {
    code
      .load('r1', 'u32', 'frame', frame.member + member.address + 4 * word)
      .store('u32', 'r6', view.address + 4 * word, 'r1')
  }
  code.load('r1', 'u16', 'frame', frame.member + member.port).store('u32', 'r6', call.port, 'r1')
}

/** Copies the endpoint of the translation at `base` to the frame. */
export function takeBackend(code: Assembler, view: View, base: Register, at: number): void {
  chooseFrom(code, view, backendAt(base, at))
}

/** The endpoint of the translation at `base`. */
function backendAt(base: Register, at: number): EndpointPlace {
  return { base, address: at + translation.backend, port: at + translation.backendPort }
}

/** Shows the caller the address that it asked for, from the translation at `base`. */
export function showOriginal(code: Assembler, view: View, base: Register, at: number): void {
  for (let word = 0; word < view.words; word++) {
    code
      .load('r1', 'u32', base, at + translation.original + 4 * word)
      .store('u32', 'r6', view.address + 4 * word, 'r1')
  }
  code.load('r1', 'u16', base, at + translation.originalPort).store('u32', 'r6', call.port, 'r1')
}

/** Runs `each` with the offset of every translation that a socket without a connection may have. */
export function everyDatagramTranslation(each: (at: number) => void): void {
  for (let index = 0; index < datagrams.count; index++) {
    each(datagrams.first + index * translation.bytes)
  }
}

/**
 * Goes to `kept` with the endpoint to which this socket sent before, if the service still has it.
 */
export function keepEndpoint(
  code: Assembler,
  view: View,
  parts: ProgramParts,
  { kept, none }: { readonly kept: string; readonly none: string },
): void {
  ofSocket(code, parts.maps.shared.datagrams, 'find')
  code.jumpIf('r0', '==', 0, none).set('r8', 'r0')
  everyDatagramTranslation((at) => {
    const next = code.freshLabel('next translation')
    compareWithCall(code, view, 'original', { base: 'r8', at, otherwise: next })
    takeBackend(code, view, 'r8', at)
    findMember(code, view, parts)
    code.jumpIf('r0', '!=', 0, kept).jump(none).label(next)
  })
}

/**
 * Notes the endpoint in the frame, in place of the socket's old one for this address, or the
 * oldest.
 */
export function noteDatagram(code: Assembler, view: View, parts: ProgramParts, none: string): void {
  const found = code.freshLabel('place found')
  ofSocket(code, parts.maps.shared.datagrams, 'create')
  code.jumpIf('r0', '==', 0, none).set('r8', 'r0')
  everyDatagramTranslation((at) => {
    const next = code.freshLabel('next place')
    compareWithCall(code, view, 'original', { base: 'r8', at, otherwise: next })
    code.compute('add', 'r8', at).jump(found).label(next)
  })
  code
    .load('r7', 'u32', 'r8', datagrams.next)
    .set('r1', 'r7')
    .compute('add', 'r1', 1)
    .compute('modulo', 'r1', datagrams.count)
    .store('u32', 'r8', datagrams.next, 'r1')
  for (let index = 0; index < datagrams.count; index++) {
    const next = code.freshLabel('next oldest')
    code
      .jumpIf('r7', '!=', index, next)
      .compute('add', 'r8', datagrams.first + index * translation.bytes)
      .jump(found)
      .label(next)
  }
  code.jump(none).label(found)
  countOver(code, parts, 'r8', 0)
  noteTranslation(code, view, 'r8', 0)
  noteWhetherCounted(code, 'r8')
  countOpen(code, parts, 'r8')
}
