import type { Assembler } from '../../../kernel/bpf/assembler.js'
import type { Register } from '../../../kernel/bpf/instructions.js'
import {
  counted,
  familyNumbers,
  memberKeyOf,
  protocols,
  stages,
  statistics,
  statisticsKey,
  type StatisticsField,
} from '../layout.js'
import { call } from './context.js'
import { copyEndpoint, endpointInFrame, frame } from './frame.js'
import { ofSocket } from './remember.js'
import type { ProgramParts, View } from './view.js'

const ifMissing = 1

/** From now on the program for connections counts what becomes of this one to the endpoint in the frame. */
export function noteCounted(code: Assembler, view: View, { maps }: ProgramParts): void {
  const isUncounted = code.freshLabel('not counted')
  ofSocket(code, maps.shared.counted, 'create')
  code.jumpIf('r0', '==', 0, isUncounted).set('r8', 'r0')
  // A socket that connects once more has what it had before.
  for (let at = 0; at < counted.bytes; at += 8) code.store('u64', 'r8', at, 0)
  writeKey(code, view, 'r8', 0)
  code
    .store('u8', 'r8', statisticsKey.protocol, protocols.TCP)
    .store('u32', 'r8', counted.stage, stages.connecting)
    .label(isUncounted)
}

/** Counts one client of UDP of the endpoint in the frame. */
export function countClient(code: Assembler, view: View, parts: ProgramParts): void {
  clearKey(code)
  writeKey(code, view, 'frame', frame.statisticsKey)
  code.store('u8', 'frame', frame.statisticsKey + statisticsKey.protocol, protocols.UDP)
  countOne(code, parts, 'opened')
}

/** Counts one call that failed, because the service in the frame has no endpoint. */
export function countRefused(code: Assembler, parts: ProgramParts): void {
  const key = frame.statisticsKey
  clearKey(code)
  code
    .load('r1', 'u32', 'frame', frame.member + memberKeyOf('IPv4').id)
    .store('u32', 'frame', key + statisticsKey.id, 'r1')
    .load('r1', 'u32', 'r6', call.protocol)
    .store('u8', 'frame', key + statisticsKey.protocol, 'r1')
  countOne(code, parts, 'refused')
}

function clearKey(code: Assembler): void {
  for (let at = 0; at < statisticsKey.bytes; at += 8) {
    code.store('u64', 'frame', frame.statisticsKey + at, 0)
  }
}

function writeKey(code: Assembler, view: View, base: Register, at: number): void {
  const { address, port } = statisticsKey
  code
    .load('r1', 'u32', 'frame', frame.member + memberKeyOf(view.family).id)
    .store('u32', base, at + statisticsKey.id, 'r1')
    .store('u8', base, at + statisticsKey.family, familyNumbers[view.family])
  copyEndpoint(code, view, endpointInFrame(view), { base, address: at + address, port: at + port })
}

function countOne(code: Assembler, parts: ProgramParts, field: StatisticsField): void {
  const isUncounted = code.freshLabel('not counted')
  code.frameAddress('r8', frame.statisticsKey)
  findStatistics(code, parts, isUncounted)
  code.set('r1', 1).atomicAdd('r0', statistics[field], 'r1').label(isUncounted)
}

/**
 * Leaves in r0 the numbers of the key that r8 points to. They are made when they are not there; where
 * there is no more room, they are those of all the rest, and so is the key.
 */
export function findStatistics(code: Assembler, { maps }: ProgramParts, none: string): void {
  const found = code.freshLabel('statistics found')
  const lookUp = () =>
    code.mapAddress('r1', maps.shared.statistics).set('r2', 'r8').call('map_lookup_elem')
  lookUp().jumpIf('r0', '!=', 0, found)
  for (let at = 0; at < statistics.bytes; at += 8) {
    code.store('u64', 'frame', frame.statistics + at, 0)
  }
  code
    .mapAddress('r1', maps.shared.statistics)
    .set('r2', 'r8')
    .frameAddress('r3', frame.statistics)
    .set('r4', ifMissing)
    .call('map_update_elem')
  // Asked again whatever the answer was: another processor may have made them meanwhile.
  lookUp().jumpIf('r0', '!=', 0, found)
  const { id, port, family, address } = statisticsKey
  code
    .store('u32', 'r8', id, 0)
    .store('u16', 'r8', port, 0)
    .store('u8', 'r8', family, 0)
    .store('u64', 'r8', address, 0)
    .store('u64', 'r8', address + 8, 0)
  lookUp().jumpIf('r0', '==', 0, none).label(found)
}
