import type { Assembler } from '../../../kernel/bpf/assembler.js'
import type { Register } from '../../../kernel/bpf/instructions.js'
import { familyNumbers, openKey, translation } from '../layout.js'
import { call } from './context.js'
import { chosenEndpoint, findOrMake, frame, writeFrame } from './frame.js'
import type { ProgramParts, View } from './view.js'

/**
 * Counts the open connections of each endpoint, for Services that choose by this number. A
 * translation says whether its connection is counted now, and in which map. So each connection is
 * subtracted only once: when it ends, when its socket is closed, or when its socket connects anew,
 * whatever comes first.
 */

/** Counts the connection of the translation at `base`, if it is to be counted. */
export function countOpen(code: Assembler, parts: ProgramParts, base: Register): void {
  const [found, uncounted] = [code.freshLabel('open found'), code.freshLabel('open uncounted')]
  code
    .load('r1', 'u32', base, translation.isCounted)
    .jumpIf('r1', '==', 0, uncounted)
    .load('r1', 'u32', base, translation.countedIn)
    .jumpIf('r1', '==', parts.openNumber, uncounted)
  findOrMake(code, parts.maps.shared.open, { key: [base, translation.backend], bytes: 8, found })
  code
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
    .lookUpAt(parts.maps.shared.open, [base, at + translation.backend])
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
