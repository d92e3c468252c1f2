import { Assembler, type MapReference } from '../../../kernel/bpf/assembler.js'
import type { Hook } from '../../../kernel/bpf/program.js'
import { protocols } from '../layout.js'
import { chooseEndpoint } from './choose-endpoint.js'
import { countConnections } from './connections.js'
import { call, closed, connectionRefused, mappedWord, socket, verdicts } from './context.js'
import { countClient, countRefused, noteCounted } from './count.js'
import { findService, leaveUnlessHost } from './find-service.js'
import { noteClient } from './flows.js'
import { frame, writeNumber } from './frame.js'
import {
  compareWithCall,
  everyDatagramTranslation,
  findDatagramTranslation,
  forgetConnection,
  keepEndpoint,
  keptFor,
  noteDatagram,
  noteTranslation,
  ofSocket,
  sendToEndpoint,
  showOriginal,
  takeBackend,
} from './remember.js'
import { noteRefused } from './refusals.js'
import { countOpen, countOver } from './open-connections.js'
import { forgetUdpSocket, noteUdpSocket } from './udp-sockets.js'
import { views, type ProgramParts, type View } from './view.js'

const none = 'nothing to translate'
const refused = 'refused'
const exits = { none, refused }

/**
 * In this order the programs are attached: those that translate answers before those that send. All
 * are needed, or replies would seem to come from somebody else.
 */
export const socketHooks: readonly Hook[] = [
  'sock_ops',
  'sock_release',
  'getpeername4',
  'getpeername6',
  'recvmsg4',
  'recvmsg6',
  'sendmsg4',
  'sendmsg6',
  'connect4',
  'connect6',
]

/** The code of every program. The same parts give the same code. */
export const programs: Readonly<Record<Hook, (parts: ProgramParts) => Buffer>> = {
  connect4: (parts) => translating(parts, [views.ip4], connect),
  connect6: (parts) => translating(parts, [views.mapped, views.ip6], connect),
  sendmsg4: (parts) => translating(parts, [views.ip4], send),
  sendmsg6: (parts) => translating(parts, [views.mapped, views.ip6], send),
  recvmsg4: (parts) => showing(parts, [views.ip4], receive),
  recvmsg6: (parts) => showing(parts, [views.mapped, views.ip6], receive),
  sock_ops: countConnections,
  sock_release: forgetting,
  getpeername4: (parts) => showing(parts, [views.ip4], showPeer),
  getpeername6: (parts) => showing(parts, [views.mapped, views.ip6], showPeer),
}

type Translate = (code: Assembler, view: View, parts: ProgramParts) => void

/** A program that may send a call elsewhere, or make it fail. */
function translating(parts: ProgramParts, seen: readonly View[], translate: Translate): Buffer {
  const code = new Assembler().set('r6', 'r1')
  if (parts.sockets === 'node') leaveUnlessHost(code, parts.hostCookie, none)
  forEveryView(code, seen, (view) => {
    translate(code, view, parts)
    code.set('r0', verdicts.goOn).exit()
  })
  code.label(none)
  // A socket that now connects to something else no longer belongs to the Service it had before.
  if (translate === connect) {
    forgetConnection(code, parts)
    forgetUdpSocket(code, parts, call)
  }
  code.set('r0', verdicts.goOn).exit().label(refused)
  countRefused(code, parts)
  noteRefused(code, seen, parts)
  return code
    .set('r1', -connectionRefused)
    .call('set_retval')
    .set('r0', verdicts.fail)
    .exit()
    .finish()
}

/** A program that shows the caller the address that the caller asked for. */
function showing(parts: ProgramParts, seen: readonly View[], show: Translate): Buffer {
  const code = new Assembler().set('r6', 'r1')
  forEveryView(code, seen, (view) => {
    show(code, view, parts)
    code.jump(none)
  })
  return code.label(none).set('r0', verdicts.goOn).exit().finish()
}

/** A program that sees sockets being closed. */
function forgetting(parts: ProgramParts): Buffer {
  const code = new Assembler().set('r6', 'r1')
  const [unconnected, isOver] = [code.freshLabel('unconnected'), code.freshLabel('all are over')]
  const find = (map: MapReference, noneKept: string) =>
    keptFor(code.set('r2', 'r6'), map, { how: 'find', none: noneKept, to: 'r8' })
  find(parts.maps.shared.connections, unconnected)
  countOver(code, parts, 'r8', 0)
  code.label(unconnected)
  find(parts.maps.shared.datagrams, isOver)
  everyDatagramTranslation((at) => countOver(code, parts, 'r8', at))
  code.label(isOver)
  forgetUdpSocket(code, parts, closed)
  return code.set('r0', verdicts.goOn).exit().finish()
}

/** Writes the code for IPv4-mapped addresses first, then for the others. */
function forEveryView(code: Assembler, seen: readonly View[], each: (view: View) => void): void {
  for (const view of seen) {
    const others = code.freshLabel('not a mapped address')
    if (view.isMapped) {
      code
        .load('r1', 'u32', 'r6', call.ip6)
        .load('r2', 'u32', 'r6', call.ip6 + 4)
        .compute('or', 'r1', 'r2')
        .jumpIf('r1', '!=', 0, others)
        .load('r1', 'u32', 'r6', call.ip6 + 8)
        .setWide('r2', BigInt(mappedWord))
        .jumpIf('r1', '!=', 'r2', others)
    }
    each(view)
    if (view.isMapped) code.label(others)
  }
}

function connect(code: Assembler, view: View, parts: ProgramParts): void {
  // A connected UDP socket stays with its endpoint. It must be possible to destroy it later.
  if (!parts.connectedUdp) {
    code.load('r1', 'u32', 'r6', call.protocol).jumpIf('r1', '!=', protocols.TCP, none)
  }
  findService(code, view, parts, exits)
  chooseEndpoint(code, view, parts, none)
  const [isTcp, isNoted] = [code.freshLabel('TCP'), code.freshLabel('noted')]
  if (parts.connectedUdp) {
    code.load('r1', 'u32', 'r6', call.protocol).jumpIf('r1', '!=', protocols.UDP, isTcp)
    noteUdpSocket(code, view, parts, none)
    countClient(code, view, parts)
    code.jump(isNoted).label(isTcp)
  }
  noteCounted(code, view, parts)
  if (parts.connectedUdp) code.label(isNoted)
  ofSocket(code, parts.maps.shared.connections, 'create', none)
  countOver(code, parts, 'r8', 0)
  noteTranslation(code, view)
  if (parts.connectedUdp) {
    const isSent = code.freshLabel('sent')
    code.load('r1', 'u32', 'r6', call.protocol).jumpIf('r1', '!=', protocols.UDP, isSent)
    countOpen(code, parts, 'r8')
    noteClient(code, view, parts)
    code.label(isSent)
  }
  sendToEndpoint(code, view)
}

function send(code: Assembler, view: View, parts: ProgramParts): void {
  const kept = code.freshLabel('endpoint kept')
  const anew = code.freshLabel('endpoint anew')
  const isFree = code.freshLabel('not connected')
  code
    .load('r1', 'u64', 'r6', call.socket)
    .load('r1', 'u16', 'r1', socket.peerPort)
    .jumpIf('r1', '==', 0, isFree)
  // A connected socket hears only its peer, so it must not send to another endpoint.
  ofSocket(code, parts.maps.shared.connections, 'find', none)
  compareWithCall(code, view, 'original', { at: 0, otherwise: none })
  // The service of this endpoint is not looked up, so its id is not known.
  writeNumber(code, frame.serviceId, 0)
  takeBackend(code, view, 0)
  code.jump(kept).label(isFree)
  // A node may have sent from here, by itself or by masquerading. Rules know answers.
  findService(code, view, parts, { ...exits, answer: none })
  keepEndpoint(code, view, parts, { kept, none: anew })
  code.label(anew)
  chooseEndpoint(code, view, parts, none)
  noteDatagram(code, view, parts, none)
  noteClient(code, view, parts)
  countClient(code, view, parts)
  code.label(kept)
  sendToEndpoint(code, view)
}

function receive(code: Assembler, view: View, { maps }: ProgramParts): void {
  const isFree = code.freshLabel('not connected')
  ofSocket(code, maps.shared.connections, 'find', isFree)
  compareWithCall(code, view, 'backend', { at: 0, otherwise: isFree })
  showOriginal(code, view, 0)
  code.jump(none).label(isFree)
  ofSocket(code, maps.shared.datagrams, 'find', none)
  findDatagramTranslation(code, view, 'backend', (at) => {
    showOriginal(code, view, at)
    code.jump(none)
  })
}

function showPeer(code: Assembler, view: View, { maps }: ProgramParts): void {
  ofSocket(code, maps.shared.connections, 'find', none)
  compareWithCall(code, view, 'backend', { at: 0, otherwise: none })
  showOriginal(code, view, 0)
}
