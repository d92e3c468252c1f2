import type { Assembler } from '../../../kernel/bpf/assembler.js'
import {
  frontendKeyOf,
  frontendKinds,
  hostOnly,
  memberKeyOf,
  protocols,
  refuses,
  service,
} from '../layout.js'
import { call, socket } from './context.js'
import { frame } from './frame.js'
import type { ProgramParts, View } from './view.js'

/** Where to go on when there is nothing to translate, and when the call has to fail. */
export interface Exits {
  readonly none: string
  readonly refused: string
}

/**
 * Finds the service that the call's address and port belong to. After it r9 has the word of the
 * service, r7 its seconds of affinity, and the frame its id. The context is in r6.
 */
export function findService(
  code: Assembler,
  view: View,
  parts: ProgramParts,
  { none, refused }: Exits,
): void {
  const { frontends, services } = parts.maps[view.family]
  const key = frontendKeyOf(view.family)
  const isKnown = code.freshLabel('protocol is known')
  const found = code.freshLabel('frontend found')
  code
    .load('r8', 'u32', 'r6', call.protocol)
    .jumpIf('r8', '==', protocols.TCP, isKnown)
    .jumpIf('r8', '!=', protocols.UDP, none)
    .label(isKnown)
    .store('u8', 'frame', frame.key + key.protocol, 'r8')
  writeAddress(code, view)
  code
    .load('r1', 'u32', 'r6', call.port)
    .store('u16', 'frame', frame.key + key.port, 'r1')
    .store('u8', 'frame', frame.key + key.kind, frontendKinds.address)
    .mapAddress('r1', frontends)
    .frameAddress('r2', frame.key)
    .call('map_lookup_elem')
    .jumpIf('r0', '!=', 0, found)
  findNodePort(code, view, parts, none)
  code
    .label(found)
    .load('r1', 'u32', 'r0', 0)
    .store('u32', 'frame', frame.slot, 'r1')
    .mapAddress('r1', services)
    .frameAddress('r2', frame.slot)
    .call('map_lookup_elem')
    .jumpIf('r0', '==', 0, none)
    .load('r9', 'u64', 'r0', 0)
    .load('r7', 'u32', 'r0', service.affinitySeconds)
    .load('r1', 'u32', 'r0', service.id)
    .store('u32', 'frame', frame.member + memberKeyOf(view.family).id, 'r1')
    .set('r1', 'r9')
    .compute('shift right', 'r1', service.flags.shift)
    .jumpIf('r1', 'has bits', refuses, refused)
    .set('r1', 'r9')
    .compute('shift right', 'r1', service.count.shift)
    .compute('and', 'r1', service.count.mask)
    .jumpIf('r1', '==', 0, none)
}

/**
 * A node port is there on every address of the node that serves node ports. Its frontend is looked
 * up first, because the port seldom belongs to one. Leaves the frontend in r0.
 */
function findNodePort(code: Assembler, view: View, parts: ProgramParts, none: string): void {
  const { frontends } = parts.maps[view.family]
  const key = frontendKeyOf(view.family)
  const isNode = code.freshLabel('address of the node')
  for (let word = 0; word < view.words; word++) {
    code.store('u32', 'frame', frame.key + 4 * word, 0)
  }
  code
    .store('u8', 'frame', frame.key + key.kind, frontendKinds.nodePort)
    .mapAddress('r1', frontends)
    .frameAddress('r2', frame.key)
    .call('map_lookup_elem')
    .jumpIf('r0', '==', 0, none)
    .set('r8', 'r0')
  writeAddress(code, view)
  code
    .store('u16', 'frame', frame.key + key.port, 0)
    .store('u8', 'frame', frame.key + key.protocol, 0)
    .store('u8', 'frame', frame.key + key.kind, frontendKinds.nodeAddress)
    .mapAddress('r1', frontends)
    .frameAddress('r2', frame.key)
    .call('map_lookup_elem')
    .jumpIf('r0', '==', 0, none)
    .load('r1', 'u32', 'r0', 0)
    .set('r0', 'r8')
    .jumpIf('r1', '!=', hostOnly, isNode)
  leaveOthersLoopback(code, view, parts, none)
  code.set('r0', 'r8').label(isNode)
}

/**
 * Loopback of another network namespace is not the node's. And a socket that is bound to an address
 * of loopback cannot leave the machine with it.
 */
function leaveOthersLoopback(
  code: Assembler,
  view: View,
  { hostCookie }: ProgramParts,
  none: string,
): void {
  leaveUnlessHost(code, hostCookie, none)
  code.load('r1', 'u64', 'r6', call.socket)
  const [own, words] =
    view.family === 'IPv4' && !view.isMapped ? [socket.sourceIp4, 1] : [socket.sourceIp6, 4]
  for (let word = 0; word < words; word++) {
    code.load('r2', 'u32', 'r1', own + 4 * word).jumpIf('r2', '!=', 0, none)
  }
}

export function leaveUnlessHost(code: Assembler, hostCookie: bigint, none: string): void {
  code
    .set('r1', 'r6')
    .call('get_netns_cookie')
    .setWide('r1', hostCookie)
    .jumpIf('r0', '!=', 'r1', none)
}

function writeAddress(code: Assembler, view: View): void {
  for (let word = 0; word < view.words; word++) {
    code
      .load('r1', 'u32', 'r6', view.address + 4 * word)
      .store('u32', 'frame', frame.key + 4 * word, 'r1')
  }
}
