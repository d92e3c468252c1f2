import type { Assembler } from '../../../kernel/bpf/assembler.js'
import { familyNumbers, keptRefusals, refusal } from '../layout.js'
import { call } from './context.js'
import { frame, writeNumber } from './frame.js'
import type { ProgramParts, View } from './view.js'

/** Notes a refused call and its process in place of the oldest one. */
export function noteRefused(code: Assembler, seen: readonly View[], { maps }: ProgramParts): void {
  const isUnnoted = code.freshLabel('refusal not noted')
  const lookUp = () =>
    code.lookUp(maps.shared.refusals, frame.slot).jumpIf('r0', '==', 0, isUnnoted)
  writeNumber(code, frame.slot, 0)
  lookUp().set('r7', 1).fetchAndAdd('r0', refusal.number, 'r7')
  code
    .set('r8', 'r7')
    .compute('modulo', 'r8', keptRefusals)
    .compute('add', 'r8', 1)
    .compute('add', 'r7', 1)
  writeNumber(code, frame.slot, 'r8')
  lookUp().set('r8', 'r0').store('u64', 'r8', refusal.number, 0)
  code.call('get_current_pid_tgid').compute('shift right', 'r0', 32)
  code.store('u32', 'r8', refusal.process, 'r0')
  code
    .load('r1', 'u32', 'frame', frame.serviceId)
    .store('u32', 'r8', refusal.id, 'r1')
    .load('r1', 'u32', 'r6', call.port)
    .store('u16', 'r8', refusal.port, 'r1')
    .load('r1', 'u32', 'r6', call.protocol)
    .store('u8', 'r8', refusal.protocol, 'r1')
  noteAddress(code, seen)
  // The number is written last, by an atomic operation. A reader that sees it sees the rest, too.
  code.fetchAndAdd('r8', refusal.number, 'r7').label(isUnnoted)
}

/** An IPv4-mapped address is noted as an IPv6 address. */
function noteAddress(code: Assembler, seen: readonly View[]): void {
  const isIp4 = seen.every(({ address }) => address === call.ip4)
  const [from, words] = isIp4 ? [call.ip4, 1] : [call.ip6, 4]
  code
    .copyWords(words, ['r6', from], ['r8', refusal.address])
    .store('u8', 'r8', refusal.family, familyNumbers[isIp4 ? 'IPv4' : 'IPv6'])
}
