import type { Assembler } from '../../../kernel/bpf/assembler.js'
import { addressFactor, familyNumbers, protocols, udpSocket } from '../layout.js'
import { call } from './context.js'
import { chosenEndpoint, frame, serviceId, writeFrame, writeNumber } from './frame.js'
import type { ProgramParts, View } from './view.js'

/**
 * Notes the endpoint in the frame for the socket of the call, and what the call asked for, so that
 * the socket is found when one of them goes. A socket that cannot be noted is not translated. Uses r8.
 */
export function noteUdpSocket(
  code: Assembler,
  view: View,
  { maps }: ProgramParts,
  none: string,
): void {
  const value = frame.udpSocket
  code.set('r1', 'r6').call('get_netns_cookie').set('r8', 0)
  for (let word = 0; word < view.words; word++) {
    code
      .compute('multiply', 'r8', addressFactor)
      .load('r1', 'u32', 'r6', view.address + 4 * word)
      .compute('add', 'r8', 'r1')
  }
  writeFrame(code, value, udpSocket.bytes, [
    { at: udpSocket.namespace, value: 'r0' },
    { at: udpSocket.id, value: serviceId },
    { at: udpSocket.family, value: familyNumbers[view.family] },
    ...chosenEndpoint(view, udpSocket),
    { at: udpSocket.askedPort, value: { base: 'r6', at: call.port, size: 'u32' } },
    // Bits that have no room are shifted out, because the field is the last of its slot.
    { at: udpSocket.askedAddress, value: 'r8' },
  ])
  writeCookie(code)
  code
    .update(maps.shared.udpSockets, ['frame', frame.socketCookie], value)
    .jumpIf('r0', '!=', 0, none)
}

/**
 * Forgets the socket in the context, if it is a UDP socket: it is closed, or connects to something
 * that is no Service. The two kinds of contexts have the protocol at different places.
 */
export function forgetUdpSocket(
  code: Assembler,
  { maps }: ProgramParts,
  context: { readonly protocol: number },
): void {
  const isOther = code.freshLabel('not UDP')
  code.load('r1', 'u32', 'r6', context.protocol).jumpIf('r1', '!=', protocols.UDP, isOther)
  writeCookie(code)
  code
    .mapAddress('r1', maps.shared.udpSockets)
    .frameAddress('r2', frame.socketCookie)
    .call('map_delete_elem')
    .label(isOther)
}

function writeCookie(code: Assembler): void {
  code.set('r1', 'r6').call('get_socket_cookie')
  writeNumber(code, frame.socketCookie, 'r0')
}
