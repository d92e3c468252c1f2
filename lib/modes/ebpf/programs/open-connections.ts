import type { Assembler } from '../../../kernel/bpf/assembler.js'
import type { Register } from '../../../kernel/bpf/instructions.js'
import { drawFlags, familyNumbers, openKey, service, translation } from '../layout.js'
import { call } from './context.js'
import { copyEndpoint, endpointInFrame, frame } from './frame.js'
import type { ProgramParts, View } from './view.js'

const ifMissing = 1

/**
 * How many connections are open at an endpoint, for Services that choose by it. A translation says
 * whether its connection is counted now, and in which map, so that each is taken away once: when it
 * ends, when its socket is closed, or when that connects anew, whatever comes first.
 */

/** Whether connections to the service in r9 are counted, noted in the translation at `base`. */
export function noteWhetherCounted(code: Assembler, base: Register): void {
  code
    .set('r1', 'r9')
    .compute('shift right', 'r1', service.flags.shift)
    .compute('and', 'r1', drawFlags.fewest)
    .store('u32', base, translation.isCounted, 'r1')
}

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
  code
    .store('u64', 'frame', frame.statistics, 0)
    .mapAddress('r1', parts.maps.shared.open)
    .set('r2', base)
    .compute('add', 'r2', translation.backend)
    .frameAddress('r3', frame.statistics)
    .set('r4', ifMissing)
    .call('map_update_elem')
  // Asked again whatever the answer was: another processor may have made it meanwhile.
  lookUp()
    .jumpIf('r0', '==', 0, uncounted)
    .label(found)
    .set('r1', 1)
    .atomicAdd('r0', 0, 'r1')
    .store('u32', base, translation.countedIn, parts.openNumber)
    .label(uncounted)
}

/** The connection of the translation at `base` and `at` is over; it may be so already. */
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

/** Leaves in r0 how many are open at the endpoint in the frame. */
export function openAtEndpoint(code: Assembler, view: View, { maps }: ProgramParts): void {
  const none = code.freshLabel('none open')
  const { address, port, family, protocol } = openKey
  const at = frame.openKey
  copyEndpoint(code, view, endpointInFrame(view), {
    ...{ base: 'frame', address: at + address, port: at + port },
  })
  for (let word = view.words; word < 4; word++) {
    code.store('u32', 'frame', at + address + 4 * word, 0)
  }
  code
    .store('u8', 'frame', at + family, familyNumbers[view.family])
    .load('r1', 'u32', 'r6', call.protocol)
    .store('u8', 'frame', at + protocol, 'r1')
    .mapAddress('r1', maps.shared.open)
    .frameAddress('r2', at)
    .call('map_lookup_elem')
    .jumpIf('r0', '==', 0, none)
    .load('r0', 'u64', 'r0', 0)
    .label(none)
}
