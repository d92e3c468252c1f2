import type { Assembler, MapReference } from '../../../kernel/bpf/assembler.js'
import type { Register } from '../../../kernel/bpf/instructions.js'
import { begun, flowEvents, flowRecord, type FlowEvent } from '../flow-layout.js'
import { counted, familyNumbers, statisticsKey, translation } from '../layout.js'
import { call, operation, operations, socket } from './context.js'
import { frame, writeNumber } from './frame.js'
import { keptFor } from './remember.js'
import type { FlowMaps, ProgramParts, View } from './view.js'

/**
 * Notes single connections, for the stream of connections. If nobody listens, programs contain none
 * of this code. The program for connections has its context in r6, and the socket's counters in r8.
 */

/** The proxy reads the ring at intervals, so the kernel need not wake it. */
const noWakeup = 1

/**
 * Notes when a connection begins, and its target list: the key in r8 may later become the key of
 * all the rest. Uses r9.
 */
export function noteBegin(code: Assembler, { flows }: ProgramParts, kind: Register): void {
  if (!flows) return
  const isUnnoted = code.freshLabel('begin not noted')
  code.jumpIf(kind, '!=', operations.connecting, isUnnoted)
  findOfSocket(code, flows.begun, { how: 'create', none: isUnnoted, to: 'r9' })
  code
    .copyWords(1, ['r8', statisticsKey.id], ['r9', begun.id])
    .call('ktime_get_ns')
    .store('u64', 'r9', begun.at, 'r0')
    .label(isUnnoted)
}

/** Writes a record of what became of the connection. Overwrites r7 and r9. */
export function noteFlow(code: Assembler, parts: ProgramParts, event: FlowEvent): void {
  const { flows, maps } = parts
  if (!flows) return
  const isUnnoted = code.freshLabel('flow not noted')
  findOfSocket(code, flows.begun, { how: 'find', none: isUnnoted, to: 'r7' })
  findOfSocket(code, maps.shared.connections, { how: 'find', none: isUnnoted, to: 'r9' })
  code
    .call('ktime_get_ns')
    .load('r1', 'u64', 'r7', begun.at)
    .compute('subtract', 'r0', 'r1')
    .store('u64', 'r7', begun.duration, 'r0')
  reserve(code, flows, { event, none: isUnnoted })
  copyNumbers(code)
  copyTranslation(code, 'r9')
  copyClient(code)
  submit(code, isUnnoted)
}

/**
 * Writes a record of the UDP socket of the call, which sends to the service in the frame from now
 * on. Its translation is at r8. Overwrites r7.
 */
export function noteClient(code: Assembler, view: View, { flows }: ProgramParts): void {
  if (!flows) return
  const isUnnoted = code.freshLabel('client not noted')
  code.call('get_current_pid_tgid').compute('shift right', 'r0', 32).set('r7', 'r0')
  reserve(code, flows, { event: 'client', none: isUnnoted })
  code
    .store('u32', 'r0', flowRecord.process, 'r7')
    .copyWords(1, ['frame', frame.serviceId], ['r0', flowRecord.id])
  copyTranslation(code, 'r8')
  code.store('u32', 'r0', flowRecord.family, familyNumbers[view.family])
  copySender(code, view)
  submit(code, isUnnoted)
}

/**
 * Leaves in r0 a new record of this event, or counts one that has no room. No helper may be called
 * before it is submitted, because r0 has the record.
 */
function reserve(
  code: Assembler,
  flows: FlowMaps,
  { event, none }: { readonly event: FlowEvent; readonly none: string },
): void {
  const hasRoom = code.freshLabel('room in ring')
  code
    .mapAddress('r1', flows.ring)
    .set('r2', flowRecord.bytes)
    .set('r3', 0)
    .call('ringbuf_reserve')
    .jumpIf('r0', '!=', 0, hasRoom)
  writeNumber(code, frame.slot, 0)
  code
    .lookUp(flows.lost, frame.slot)
    .jumpIf('r0', '==', 0, none)
    .set('r1', 1)
    .atomicAdd('r0', 0, 'r1')
  code.jump(none).label(hasRoom).store('u32', 'r0', flowRecord.event, flowEvents[event])
}

function submit(code: Assembler, none: string): void {
  code.set('r1', 'r0').set('r2', noWakeup).call('ringbuf_submit').label(none)
}

/** Copies what is counted for the socket to the record in r0. */
function copyNumbers(code: Assembler): void {
  const copy = copying(code)
  copy('u32', ['r7', begun.id], flowRecord.id)
  copy('u64', ['r7', begun.duration], flowRecord.duration)
  copy('u64', ['r8', counted.acknowledged], flowRecord.toEndpoint)
  copy('u64', ['r8', counted.received], flowRecord.toClient)
}

/** Copies the addresses of the translation at `base` to the record in r0. */
function copyTranslation(code: Assembler, base: Register): void {
  const copy = copying(code)
  for (const at of [0, 8]) {
    copy('u64', [base, translation.original + at], flowRecord.original + at)
    copy('u64', [base, translation.backend + at], flowRecord.backend + at)
  }
  copy('u16', [base, translation.originalPort], flowRecord.originalPort)
  copy('u16', [base, translation.backendPort], flowRecord.backendPort)
}

const copying =
  (code: Assembler) =>
  (size: 'u16' | 'u32' | 'u64', [base, at]: readonly [Register, number], to: number) =>
    code.load('r1', size, base, at).store(size, 'r0', to, 'r1')

/** Copies the address that the socket of the call is bound to; zeros where there is none. */
function copySender(code: Assembler, view: View): void {
  const own = view.family === 'IPv4' && !view.isMapped ? socket.sourceIp4 : socket.sourceIp6
  // An IPv6 socket has an IPv4 address in the last word.
  const from = view.isMapped ? own + 12 : own
  code
    .load('r2', 'u64', 'r6', call.socket)
    .copyWords(view.words, ['r2', from], ['r0', flowRecord.client])
    .copyWords(1, ['r2', socket.sourcePort], ['r0', flowRecord.clientPort])
}

function copyClient(code: Assembler): void {
  const [isIp6, isCopied] = [code.freshLabel('client of IPv6'), code.freshLabel('client copied')]
  const to = ['r0', flowRecord.client] as const
  code
    .copyWords(1, ['r6', operation.localPort], ['r0', flowRecord.clientPort])
    .load('r1', 'u8', 'r9', translation.family)
    .store('u32', 'r0', flowRecord.family, 'r1')
    .jumpIf('r1', '==', familyNumbers.IPv6, isIp6)
    .copyWords(1, ['r6', operation.localIp4], to)
    .jump(isCopied)
    .label(isIp6)
    .copyWords(4, ['r6', operation.localIp6], to)
    .label(isCopied)
}

/** Finds what the map keeps for the socket of the operation; goes to `none` if that is nothing. */
export function findOfSocket(
  code: Assembler,
  map: MapReference,
  how: { readonly how: 'find' | 'create'; readonly none: string; readonly to: Register },
): void {
  code.load('r2', 'u64', 'r6', operation.socket).jumpIf('r2', '==', 0, how.none)
  keptFor(code, map, how)
}
