import type { Assembler } from '../../../kernel/bpf/assembler.js'
import {
  counted,
  familyNumbers,
  protocols,
  stages,
  statistics,
  statisticsKey,
  type StatisticsField,
} from '../layout.js'
import { call } from './context.js'
import { chosenEndpoint, copyEndpoint, findOrMake, frame, serviceId, writeFrame } from './frame.js'
import { ofSocket } from './remember.js'
import type { ProgramParts, View } from './view.js'

/** Makes the program for connections count this one, which goes to the endpoint in the frame. */
export function noteCounted(code: Assembler, view: View, { maps }: ProgramParts): void {
  const isUncounted = code.freshLabel('not counted')
  ofSocket(code, maps.shared.counted, 'create', isUncounted)
  // A socket that connects once more still has its old numbers.
  for (let at = 0; at < counted.bytes; at += 8) code.store('u64', 'r8', at, 0)
  const { address, port } = statisticsKey
  copyEndpoint(code, view, { base: 'r8', address, port })
  code
    .load('r1', serviceId.size, serviceId.base, serviceId.at)
    .store('u32', 'r8', statisticsKey.id, 'r1')
    .store('u8', 'r8', statisticsKey.family, familyNumbers[view.family])
    .store('u8', 'r8', statisticsKey.protocol, protocols.TCP)
    .store('u32', 'r8', counted.stage, stages.connecting)
    .label(isUncounted)
}

/** Counts one more UDP client of the endpoint in the frame. */
export function countClient(code: Assembler, view: View, parts: ProgramParts): void {
  writeFrame(code, frame.statisticsKey, statisticsKey.bytes, [
    { at: statisticsKey.id, value: serviceId },
    { at: statisticsKey.family, value: familyNumbers[view.family] },
    { at: statisticsKey.protocol, value: protocols.UDP },
    ...chosenEndpoint(view, statisticsKey),
  ])
  countOne(code, parts, 'opened')
}

/** Counts one call that failed, because the service in the frame has no endpoint. */
export function countRefused(code: Assembler, parts: ProgramParts): void {
  writeFrame(code, frame.statisticsKey, statisticsKey.bytes, [
    { at: statisticsKey.id, value: serviceId },
    { at: statisticsKey.protocol, value: { base: 'r6', at: call.protocol, size: 'u32' } },
  ])
  countOne(code, parts, 'refused')
}

function countOne(code: Assembler, parts: ProgramParts, field: StatisticsField): void {
  const isUncounted = code.freshLabel('not counted')
  code.frameAddress('r8', frame.statisticsKey)
  findStatistics(code, parts, isUncounted)
  code.set('r1', 1).atomicAdd('r0', statistics[field], 'r1').label(isUncounted)
}

/**
 * Leaves in r0 the numbers for the key that r8 points to. Missing numbers are made. If the map is
 * full, the key becomes the key of all the rest, and r0 gets the numbers of the rest.
 */
export function findStatistics(code: Assembler, { maps }: ProgramParts, none: string): void {
  const found = code.freshLabel('statistics found')
  const map = maps.shared.statistics
  findOrMake(code, map, { key: ['r8', 0], bytes: statistics.bytes, found })
  code.jumpIf('r0', '!=', 0, found)
  // The key may be in the frame, so its slots are written as a whole. Only the protocol stays.
  const { id, protocol, address } = statisticsKey
  code
    .load('r1', 'u8', 'r8', protocol)
    .compute('shift left', 'r1', 8 * (protocol - id))
    .store('u64', 'r8', id, 'r1')
    .store('u64', 'r8', address, 0)
    .store('u64', 'r8', address + 8, 0)
  code.lookUpAt(map, ['r8', 0]).jumpIf('r0', '==', 0, none).label(found)
}
