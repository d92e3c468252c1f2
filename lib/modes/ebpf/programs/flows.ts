import type { Assembler, MapReference } from '../../../kernel/bpf/assembler.js'
import type { Register } from '../../../kernel/bpf/instructions.js'
import { begun, flowEvents, flowRecord, type FlowEvent } from '../flow-layout.js'
import { counted, familyNumbers, statisticsKey, translation } from '../layout.js'
import { operation, operations } from './context.js'
import { frame, writeNumber } from './frame.js'
import type { FlowMaps, ProgramParts } from './view.js'

/**
 * Notes single connections, for the stream of connections. If nobody listens, programs contain none
 * of this code. The program for connections has its context in r6, and the socket's counters in r8.
 */

const createIfMissing = 1
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
    .load('r1', 'u32', 'r8', statisticsKey.id)
    .store('u32', 'r9', begun.id, 'r1')
    .call('ktime_get_ns')
    .store('u64', 'r9', begun.at, 'r0')
    .label(isUnnoted)
}

/** Writes a record of what became of the connection. Overwrites r7 and r9. */
export function noteFlow(code: Assembler, parts: ProgramParts, event: FlowEvent): void {
  const { flows, maps } = parts
  if (!flows) return
  const [isUnnoted, hasRoom] = [code.freshLabel('flow not noted'), code.freshLabel('room in ring')]
  findOfSocket(code, flows.begun, { how: 'find', none: isUnnoted, to: 'r7' })
  findOfSocket(code, maps.shared.connections, { how: 'find', none: isUnnoted, to: 'r9' })
  // No helper may be called between the reservation and the copy, because r0 has the record.
  code
    .call('ktime_get_ns')
    .load('r1', 'u64', 'r7', begun.at)
    .compute('subtract', 'r0', 'r1')
    .store('u64', 'r7', begun.duration, 'r0')
    .mapAddress('r1', flows.ring)
    .set('r2', flowRecord.bytes)
    .set('r3', 0)
    .call('ringbuf_reserve')
    .jumpIf('r0', '!=', 0, hasRoom)
  countLost(code, flows, isUnnoted)
  code.jump(isUnnoted).label(hasRoom).store('u32', 'r0', flowRecord.event, flowEvents[event])
  copyAll(code)
  copyClient(code)
  code.set('r1', 'r0').set('r2', noWakeup).call('ringbuf_submit').label(isUnnoted)
}

function countLost(code: Assembler, { lost }: FlowMaps, none: string): void {
  writeNumber(code, frame.slot, 0)
  code
    .mapAddress('r1', lost)
    .frameAddress('r2', frame.slot)
    .call('map_lookup_elem')
    .jumpIf('r0', '==', 0, none)
    .set('r1', 1)
    .atomicAdd('r0', 0, 'r1')
}

/** Copies what is kept with the socket to the record in r0. */
function copyAll(code: Assembler): void {
  const copy = (size: 'u16' | 'u32' | 'u64', from: Register, at: number, to: number) =>
    code.load('r1', size, from, at).store(size, 'r0', to, 'r1')
  copy('u32', 'r7', begun.id, flowRecord.id)
  copy('u64', 'r7', begun.duration, flowRecord.duration)
  copy('u64', 'r8', counted.acknowledged, flowRecord.toEndpoint)
  copy('u64', 'r8', counted.received, flowRecord.toClient)
  for (const at of [0, 8]) {
    copy('u64', 'r9', translation.original + at, flowRecord.original + at)
    copy('u64', 'r9', translation.backend + at, flowRecord.backend + at)
  }
  copy('u16', 'r9', translation.originalPort, flowRecord.originalPort)
  copy('u16', 'r9', translation.backendPort, flowRecord.backendPort)
}

function copyClient(code: Assembler): void {
  const [isIp6, isCopied] = [code.freshLabel('client of IPv6'), code.freshLabel('client copied')]
  const copy = (from: number, to: number) =>
    code.load('r1', 'u32', 'r6', from).store('u32', 'r0', to, 'r1')
  copy(operation.localPort, flowRecord.clientPort)
  code
    .load('r1', 'u8', 'r9', translation.family)
    .store('u32', 'r0', flowRecord.family, 'r1')
    .jumpIf('r1', '==', familyNumbers.IPv6, isIp6)
  copy(operation.localIp4, flowRecord.client)
  code.jump(isCopied).label(isIp6)
  for (let word = 0; word < 4; word++) {
    copy(operation.localIp6 + 4 * word, flowRecord.client + 4 * word)
  }
  code.label(isCopied)
}

interface OfSocket {
  readonly how: 'find' | 'create'
  readonly none: string
  readonly to: Register
}

function findOfSocket(code: Assembler, map: MapReference, { how, none, to }: OfSocket): void {
  code
    .load('r2', 'u64', 'r6', operation.socket)
    .jumpIf('r2', '==', 0, none)
    .mapAddress('r1', map)
    .set('r3', 0)
    .set('r4', how === 'create' ? createIfMissing : 0)
    .call('sk_storage_get')
    .jumpIf('r0', '==', 0, none)
    .set(to, 'r0')
}
