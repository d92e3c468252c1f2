import type { Assembler, MapReference } from '../../../kernel/bpf/assembler.js'
import type { Register } from '../../../kernel/bpf/instructions.js'
import { datagrams, drawFlags, familyNumbers, service, translation } from '../layout.js'
import { findMember } from './choose-endpoint.js'
import { call } from './context.js'
import { chooseFrom, copyEndpoint, endpointInFrame, type EndpointPlace } from './frame.js'
import { countOpen, countOver } from './open-connections.js'
import type { ProgramParts, View } from './view.js'

const createIfMissing = 1

/**
 * Leaves in r8 what the map keeps for the socket of the call; goes to `none` if that is nothing.
 */
export function ofSocket(
  code: Assembler,
  map: MapReference,
  how: 'find' | 'create',
  none: string,
): void {
  code.load('r2', 'u64', 'r6', call.socket)
  keptFor(code, map, { how, none, to: 'r8' })
}

/** The same for the socket in r2. */
export function keptFor(
  code: Assembler,
  map: MapReference,
  { how, none, to }: { how: 'find' | 'create'; none: string; to: Register },
): void {
  code
    .mapAddress('r1', map)
    .set('r3', 0)
    .set('r4', how === 'create' ? createIfMissing : 0)
    .call('sk_storage_get')
    .jumpIf('r0', '==', 0, none)
    .set(to, 'r0')
}

export function forgetConnection(code: Assembler, parts: ProgramParts): void {
  const { connections, counted } = parts.maps.shared
  const wasNone = code.freshLabel('was no connection')
  const forget = (map: MapReference) =>
    code.mapAddress('r1', map).load('r2', 'u64', 'r6', call.socket).call('sk_storage_delete')
  ofSocket(code, connections, 'find', wasNone)
  countOver(code, parts, 'r8', 0)
  forget(connections)
  forget(counted).label(wasNone)
}

/**
 * Writes a translation to the memory at r8: where the call wanted to go, the endpoint in the frame,
 * and whether connections to the service in r9 are counted.
 */
export function noteTranslation(code: Assembler, view: View): void {
  code.copyWords(view.words, ['r6', view.address], ['r8', translation.original])
  copyEndpoint(code, view, backendAt(0))
  for (let word = view.words; word < 4; word++) {
    code.store('u32', 'r8', translation.backend + 4 * word, 0)
  }
  code
    .load('r1', 'u32', 'r6', call.port)
    .store('u16', 'r8', translation.originalPort, 'r1')
    .load('r1', 'u32', 'r6', call.protocol)
    .store('u8', 'r8', translation.protocol, 'r1')
    .store('u8', 'r8', translation.family, familyNumbers[view.family])
    .set('r1', 'r9')
    .compute('shift right', 'r1', service.flags.shift)
    .compute('and', 'r1', drawFlags.fewest)
    .store('u32', 'r8', translation.isCounted, 'r1')
}

type Side = 'original' | 'backend'

/** Goes to `otherwise` unless the call's address is that side of the translation at r8 and `at`. */
export function compareWithCall(
  code: Assembler,
  view: View,
  side: Side,
  { at, otherwise }: { readonly at: number; readonly otherwise: string },
): void {
  const port = side === 'original' ? translation.originalPort : translation.backendPort
  code
    .load('r1', 'u8', 'r8', at + translation.family)
    .jumpIf('r1', '!=', familyNumbers[view.family], otherwise)
    .load('r1', 'u16', 'r8', at + port)
    .load('r2', 'u32', 'r6', call.port)
    .jumpIf('r1', '!=', 'r2', otherwise)
  for (let word = 0; word < view.words; word++) {
    code
      .load('r1', 'u32', 'r8', at + translation[side] + 4 * word)
      .load('r2', 'u32', 'r6', view.address + 4 * word)
      .jumpIf('r1', '!=', 'r2', otherwise)
  }
}

/** Sends the call to the endpoint in the frame. */
export function sendToEndpoint(code: Assembler, view: View): void {
  putIntoCall(code, view, endpointInFrame(view))
}

function putIntoCall(code: Assembler, view: View, { base, address, port }: EndpointPlace): void {
  code
    .copyWords(view.words, [base, address], ['r6', view.address])
    .load('r1', 'u16', base, port)
    .store('u32', 'r6', call.port, 'r1')
}

/** Copies the endpoint of the translation at r8 and `at` to the frame. */
export function takeBackend(code: Assembler, view: View, at: number): void {
  chooseFrom(code, view, backendAt(at))
}

/** The endpoint of the translation at r8 and `at`. */
function backendAt(at: number): EndpointPlace {
  return { base: 'r8', address: at + translation.backend, port: at + translation.backendPort }
}

/** Shows the caller the address that it asked for, from the translation at r8 and `at`. */
export function showOriginal(code: Assembler, view: View, at: number): void {
  const { original: address, originalPort: port } = translation
  putIntoCall(code, view, { base: 'r8', address: at + address, port: at + port })
}

/** Runs `each` with the offset of every translation that a socket without a connection may have. */
export function everyDatagramTranslation(each: (at: number) => void): void {
  for (let index = 0; index < datagrams.count; index++) {
    each(datagrams.first + index * translation.bytes)
  }
}

/**
 * Runs `found` for each translation at r8 that has the call's address on this side. A translation of
 * another address goes on to the next.
 */
export function findDatagramTranslation(
  code: Assembler,
  view: View,
  side: Side,
  found: (at: number) => void,
): void {
  everyDatagramTranslation((at) => {
    const next = code.freshLabel('next translation')
    compareWithCall(code, view, side, { at, otherwise: next })
    found(at)
    code.label(next)
  })
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
  ofSocket(code, parts.maps.shared.datagrams, 'find', none)
  findDatagramTranslation(code, view, 'original', (at) => {
    takeBackend(code, view, at)
    findMember(code, view, parts)
    code.jumpIf('r0', '!=', 0, kept).jump(none)
  })
}

/**
 * Notes the endpoint in the frame, in place of the socket's old one for this address, or the
 * oldest.
 */
export function noteDatagram(code: Assembler, view: View, parts: ProgramParts, none: string): void {
  const found = code.freshLabel('place found')
  ofSocket(code, parts.maps.shared.datagrams, 'create', none)
  findDatagramTranslation(code, view, 'original', (at) => {
    code.compute('add', 'r8', at).jump(found)
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
  noteTranslation(code, view)
  countOpen(code, parts, 'r8')
}
