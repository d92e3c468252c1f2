import type { Assembler } from '../../../kernel/bpf/assembler.js'
import { protocols, refuses, service } from '../layout.js'
import { call, socket } from './context.js'
import { addressFields, frame, writeFrame, writeNumber, type Field } from './frame.js'
import type { ProgramParts, View } from './view.js'
import {
  frontendKeyOf,
  frontendKinds,
  frontendValue,
  hostOnly,
  mayBeClient,
  type FrontendKind,
} from '../frontend-layout.js'

/** The labels to go to if there is nothing to translate, and if the call has to fail. */
interface Exits {
  readonly none: string
  readonly refused: string
  /** Where a call goes that may be the answer of a server; absent: it is none. */
  readonly answer?: string
}

/**
 * Finds the service that the call's address and port belong to. Afterwards r9 has the word of the
 * service, r7 its seconds of affinity, and the frame its id. The context is in r6.
 */
export function findService(
  code: Assembler,
  view: View,
  parts: ProgramParts,
  { none, refused, answer }: Exits,
): void {
  const { services } = parts.maps[view.family]
  const isKnown = code.freshLabel('protocol is known')
  const found = code.freshLabel('frontend found')
  code
    .load('r8', 'u32', 'r6', call.protocol)
    .jumpIf('r8', '==', protocols.TCP, isKnown)
    .jumpIf('r8', '!=', protocols.UDP, none)
    .label(isKnown)
  findFrontend(code, view, parts, 'address')
  if (answer === undefined) code.jumpIf('r0', '!=', 0, found)
  else leaveAnswer(code, found, answer)
  findNodePort(code, view, parts, { none, atNode: answer })
  code.label(found)
  writeNumber(code, frame.slot, { base: 'r0', at: 0, size: 'u32' })
  code
    .lookUp(services, frame.slot)
    .jumpIf('r0', '==', 0, none)
    .load('r9', 'u64', 'r0', 0)
    .load('r7', 'u32', 'r0', service.affinitySeconds)
  writeNumber(code, frame.serviceId, { base: 'r0', at: service.id, size: 'u32' })
  code
    .set('r1', 'r9')
    .compute('shift right', 'r1', service.flags.shift)
    .jumpIf('r1', 'has bits', refuses, refused)
    .set('r1', 'r9')
    .compute('shift right', 'r1', service.count.shift)
    .compute('and', 'r1', service.count.mask)
    .jumpIf('r1', '==', 0, none)
}

/** Goes to `answer` from the frontend in r0 if clients may be there, else to `found`. */
function leaveAnswer(code: Assembler, found: string, answer: string): void {
  const isNone = code.freshLabel('no frontend of this address')
  code
    .jumpIf('r0', '==', 0, isNone)
    .load('r1', 'u32', 'r0', frontendValue.more)
    .jumpIf('r1', '!=', mayBeClient, found)
    .jump(answer)
    .label(isNone)
}

/**
 * Finds a node port, which is served at several addresses of the node. The port is looked up before
 * the address, because few ports are node ports. Leaves the frontend in r0.
 */
function findNodePort(
  code: Assembler,
  view: View,
  parts: ProgramParts,
  { none, atNode }: { readonly none: string; readonly atNode: string | undefined },
): void {
  const isNode = code.freshLabel('address of the node')
  findFrontend(code, view, parts, 'nodePort')
  code.jumpIf('r0', '==', 0, none).set('r8', 'r0')
  findFrontend(code, view, parts, 'nodeAddress')
  code
    .jumpIf('r0', '==', 0, none)
    .load('r1', 'u32', 'r0', 0)
    .set('r0', 'r8')
    .jumpIf('r1', '!=', hostOnly, atNode ?? isNode)
  leaveOthersLoopback(code, view, parts, none)
  code.set('r0', 'r8')
  if (atNode === undefined) code.label(isNode)
}

/**
 * Leaves some calls to a loopback address to the packet path. The loopback of another network
 * namespace is not the node's. A socket that is bound to a loopback address cannot leave the
 * machine with it.
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

/**
 * Leaves in r0 the call's frontend of this kind. Except for node addresses, r8 has the protocol.
 */
function findFrontend(code: Assembler, view: View, parts: ProgramParts, kind: FrontendKind): void {
  const key = frontendKeyOf(view.family)
  const from = { base: 'r6', at: view.address, size: 'u32' } as const
  writeFrame(code, frame.key, key.bytes, [
    ...(kind === 'nodePort' ? [] : addressFields(view.words, from, 0)),
    ...(kind === 'nodeAddress' ? [] : portFields(key)),
    { at: key.kind, value: frontendKinds[kind] },
  ])
  code.lookUp(parts.maps[view.family].frontends, frame.key)
}

const portFields = (key: ReturnType<typeof frontendKeyOf>): readonly Field[] => [
  { at: key.port, value: { base: 'r6', at: call.port, size: 'u32' } },
  { at: key.protocol, value: 'r8' },
]
