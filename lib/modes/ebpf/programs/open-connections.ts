import type { Assembler } from '../../../kernel/bpf/assembler.js'
import type { Register } from '../../../kernel/bpf/instructions.js'
import { familyNumbers, openKey, translation } from '../layout.js'
import { call } from './context.js'
import { chosenEndpoint, frame, writeFrame, writeNumber } from './frame.js'
import type { ProgramParts, View } from './view.js'

const ifMissing = 1

/**
 * Counts the open connections of each endpoint, for Services that choose by this number. A
 * translation says whether its connection is counted now, and in which map. So each connection is
 * subtracted only once: when it ends, when its socket is closed, or when its socket connects anew,
 * whatever comes first.
 */

/** Counts the connection of the translation at `base`, if it is to be counted. */
export function countOpen(code: Assembler, parts: ProgramParts, base: Register): void {
  const [found, uncounted] = [code.freshLabel('open found'), code.freshLabel('open uncounted')]
  const lookUp = () =>
    code
      .mapAddress('r1', parts.maps.shared.open)
      .set('r2', base)
      .compute('add', 'r2', translation.backend)
      .call('map_lookup_elem')
  code
    .load('r1', 'u32', base, translation.isCounted)
    .jumpIf('r1', '==', 0, uncounted)
    .load('r1', 'u32', base, translation.countedIn)
    .jumpIf('r1', '==', parts.openNumber, uncounted)
  lookUp().jumpIf('r0', '!=', 0, found)
  writeNumber(code, frame.statistics, 0)
  code
    .mapAddress('r1', parts.maps.shared.open)
    .set('r2', base)
    .compute('add', 'r2', translation.backend)
    .frameAddress('r3', frame.statistics)
    .set('r4', ifMissing)
    .call('map_update_elem')
  // The map is asked again in any case: another processor may have made the entry meanwhile.
  lookUp()
    .jumpIf('r0', '==', 0, uncounted)
    .label(found)
    .set('r1', 1)
    .atomicAdd('r0', 0, 'r1')
    .store('u32', base, translation.countedIn, parts.openNumber)
    .label(uncounted)
}

/** Subtracts the connection of the translation at `base` and `at`, unless this was done before. */
export function countOver(code: Assembler, parts: ProgramParts, base: Register, at: number): void {
  const uncounted = code.freshLabel('was not counted')
  code
    .set('r1', 0)
    .exchange(base, at + translation.countedIn, 'r1')
    .jumpIf('r1', '!=', parts.openNumber, uncounted)
    .mapAddress('r1', parts.maps.shared.open)
    .set('r2', base)
    .compute('add', 'r2', at + translation.backend)
    .call('map_lookup_elem')
    .jumpIf('r0', '==', 0, uncounted)
    .set('r1', -1)
    .atomicAdd('r0', 0, 'r1')
    .label(uncounted)
}

/** Leaves in r0 how many connections are open at the endpoint in the frame. */
export function openAtEndpoint(code: Assembler, view: View, { maps }: ProgramParts): void {
  const none = code.freshLabel('none open')
  writeFrame(code, frame.openKey, openKey.bytes, [
    ...chosenEndpoint(view, openKey),
    { at: openKey.family, value: familyNumbers[view.family] },
    { at: openKey.protocol, value: { base: 'r6', at: call.protocol, size: 'u32' } },
  ])
  code
    .lookUp(maps.shared.open, frame.openKey)
    .jumpIf('r0', '==', 0, none)
    .load('r0', 'u64', 'r0', 0)
    .label(none)
}
