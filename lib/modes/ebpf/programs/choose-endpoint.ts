import type { Assembler } from '../../../kernel/bpf/assembler.js'
import { affinityKey, affinityValue, familyNumbers, memberValues } from '../layout.js'
import { nanosecondsPerSecond } from './context.js'
import { drawEndpoint } from './draw-endpoint.js'
import { chooseFrom, chosenEndpoint, frame, serviceId, writeFrame } from './frame.js'
import type { ProgramParts, View } from './view.js'

/**
 * Chooses an endpoint of the service in r9: the one that this client has, or any. Its address and
 * port are in the frame afterwards, in the key of `members`.
 */
export function chooseEndpoint(
  code: Assembler,
  view: View,
  parts: ProgramParts,
  none: string,
): void {
  const chosen = code.freshLabel('endpoint chosen')
  const anyEndpoint = code.freshLabel('any endpoint')
  // Zeros come first: without CAP_PERFMON some kernels do not see that the key is written before it
  // is read.
  writeFrame(code, frame.affinityKey, affinityKey.bytes, [])
  code.jumpIf('r7', '==', 0, anyEndpoint)
  useAffinity(code, view, parts, { chosen, anyEndpoint })
  code.label(anyEndpoint)
  drawEndpoint(code, view, parts, none)
  code.jumpIf('r7', '==', 0, chosen)
  noteAffinity(code, view, parts)
  code.label(chosen)
}

/** Looks up the endpoint in the frame. r0 is 0 if the service does not have it (any more). */
export function findMember(code: Assembler, view: View, parts: ProgramParts): void {
  code.lookUp(parts.maps[view.family].members, frame.member)
}

function useAffinity(
  code: Assembler,
  view: View,
  parts: ProgramParts,
  { chosen, anyEndpoint }: { readonly chosen: string; readonly anyEndpoint: string },
): void {
  code.set('r1', 'r6').call('get_netns_cookie')
  writeFrame(code, frame.affinityKey, affinityKey.bytes, [
    { at: affinityKey.cookie, value: 'r0' },
    { at: affinityKey.id, value: serviceId },
    { at: affinityKey.family, value: familyNumbers[view.family] },
  ])
  code
    .lookUp(parts.maps.shared.affinity, frame.affinityKey)
    .jumpIf('r0', '==', 0, anyEndpoint)
    .set('r8', 'r0')
    .call('ktime_get_ns')
    .load('r1', 'u64', 'r8', affinityValue.usedAt)
    .set('r2', 'r7')
    .compute('multiply', 'r2', nanosecondsPerSecond)
    .compute('add', 'r1', 'r2')
    .jumpIf('r1', '<', 'r0', anyEndpoint)
    .store('u64', 'r8', affinityValue.usedAt, 'r0')
  const { address, port } = affinityValue
  chooseFrom(code, view, { base: 'r8', address, port })
  findMember(code, view, parts)
  code
    .jumpIf('r0', '==', 0, anyEndpoint)
    .load('r1', 'u8', 'r0', 0)
    .jumpIf('r1', '==', memberValues.takesClients, chosen)
}

function noteAffinity(code: Assembler, view: View, parts: ProgramParts): void {
  const value = frame.affinityValue
  code.call('ktime_get_ns')
  writeFrame(code, value, affinityValue.bytes, [
    { at: affinityValue.usedAt, value: 'r0' },
    ...chosenEndpoint(view, affinityValue),
  ])
  code.update(parts.maps.shared.affinity, ['frame', frame.affinityKey], value)
}
