import type { Assembler } from '../../../kernel/bpf/assembler.js'
import { familyNumbers, memberKeyOf, protocols, udpSocket } from '../layout.js'
import { copyEndpoint, endpointInFrame, frame } from './frame.js'
import type { ProgramParts, View } from './view.js'

/**
 * Notes the endpoint in the frame for the socket of the call, so that the socket is found when that
 * endpoint goes. What cannot be noted is not translated.
 */
export function noteUdpSocket(
  code: Assembler,
  view: View,
  { maps }: ProgramParts,
  none: string,
): void {
  const member = memberKeyOf(view.family)
  const value = frame.udpSocket
  for (let at = 0; at < udpSocket.bytes; at += 8) code.store('u64', 'frame', value + at, 0)
  code
    .set('r1', 'r6')
    .call('get_netns_cookie')
    .store('u64', 'frame', value + udpSocket.namespace, 'r0')
    .load('r1', 'u32', 'frame', frame.member + member.id)
    .store('u32', 'frame', value + udpSocket.id, 'r1')
    .store('u32', 'frame', value + udpSocket.family, familyNumbers[view.family])
  const { address, port } = udpSocket
  const noted = { base: 'frame', address: value + address, port: value + port } as const
  copyEndpoint(code, view, endpointInFrame(view), noted)
  writeCookie(code)
  code
    .mapAddress('r1', maps.shared.udpSockets)
    .frameAddress('r2', frame.socketCookie)
    .frameAddress('r3', value)
    .set('r4', 0)
    .call('map_update_elem')
    .jumpIf('r0', '!=', 0, none)
}

/**
 * Forgets the socket in the context, if it is one of UDP: it is closed, or turns to something that
 * is no Service. The two kinds of contexts have the protocol at different places.
 */
export function forgetUdpSocket(
  code: Assembler,
  parts: ProgramParts,
  context: { readonly protocol: number },
): void {
  const isOther = code.freshLabel('not UDP')
  code.load('r1', 'u32', 'r6', context.protocol).jumpIf('r1', '!=', protocols.UDP, isOther)
  deleteEntry(code, parts)
  code.label(isOther)
}

function deleteEntry(code: Assembler, { maps }: ProgramParts): void {
  writeCookie(code)
  code
    .mapAddress('r1', maps.shared.udpSockets)
    .frameAddress('r2', frame.socketCookie)
    .call('map_delete_elem')
}

function writeCookie(code: Assembler): void {
  code.set('r1', 'r6').call('get_socket_cookie').store('u64', 'frame', frame.socketCookie, 'r0')
}
