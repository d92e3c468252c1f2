import type { Assembler } from '../../../kernel/bpf/assembler.js'
import type { Register } from '../../../kernel/bpf/instructions.js'
import { backendOf, drawFlags, memberKeyOf, service } from '../layout.js'
import { addressFields, frame, writeMember, writeNumber, type Place } from './frame.js'
import { openAtEndpoint } from './open-connections.js'
import type { ProgramParts, View } from './view.js'

/** Draws an endpoint of the service in r9, as its flags say, and writes it to the frame. */
export function drawEndpoint(code: Assembler, view: View, parts: ProgramParts, none: string): void {
  const [inTurn, byFewest] = [code.freshLabel('in turn'), code.freshLabel('by fewest')]
  const [byChance, placed] = [code.freshLabel('by chance'), code.freshLabel('place in r0')]
  const done = code.freshLabel('endpoint drawn')
  code
    .set('r1', 'r9')
    .compute('shift right', 'r1', service.flags.shift)
    .jumpIf('r1', 'has bits', drawFlags.turn, inTurn)
    .jumpIf('r1', 'has bits', drawFlags.fewest, byFewest)
    .label(byChance)
    .call('get_prandom_u32')
  countOfEndpoints(code, 'r1')
  code.compute('modulo', 'r0', 'r1').jump(placed).label(byFewest)
  countOfEndpoints(code, 'r1')
  code.jumpIf('r1', '<', 2, byChance)
  drawFewerOpen(code, view, parts, { none, done })
  code.jump(done).label(inTurn)
  takeTurn(code, view, parts, none)
  code.label(placed)
  storePlace(code, 'r0', frame.place)
  takeEndpoint(code, view, parts, none)
  code.label(done)
}

/** Draws two endpoints by chance, and takes the one with fewer open connections. */
function drawFewerOpen(
  code: Assembler,
  view: View,
  parts: ProgramParts,
  { none, done }: { readonly none: string; readonly done: string },
): void {
  drawTwo(code)
  takeEndpoint(code, view, parts, none)
  openAtEndpoint(code, view, parts)
  code.set('r8', 'r0')
  const exchangePlaces = () =>
    code
      .load('r1', 'u64', 'frame', frame.place)
      .load('r2', 'u64', 'frame', frame.otherPlace)
      .store('u64', 'frame', frame.place, 'r2')
      .store('u64', 'frame', frame.otherPlace, 'r1')
  exchangePlaces()
  takeEndpoint(code, view, parts, none)
  openAtEndpoint(code, view, parts)
  code.jumpIf('r0', 'signed <', 'r8', done)
  exchangePlaces()
  takeEndpoint(code, view, parts, none)
}

/** Draws two different places. The service has at least two endpoints. */
function drawTwo(code: Assembler): void {
  const inside = code.freshLabel('second is inside')
  code.call('get_prandom_u32')
  countOfEndpoints(code, 'r1')
  code.compute('modulo', 'r0', 'r1').set('r8', 'r0').call('get_prandom_u32')
  countOfEndpoints(code, 'r1')
  code
    .set('r2', 'r1')
    .compute('subtract', 'r2', 1)
    .compute('modulo', 'r0', 'r2')
    .compute('add', 'r0', 'r8')
    .compute('add', 'r0', 1)
    .jumpIf('r0', '<', 'r1', inside)
    .compute('subtract', 'r0', 'r1')
    .label(inside)
  storePlace(code, 'r0', frame.otherPlace)
  storePlace(code, 'r8', frame.place)
}

/** Leaves in r0 the index of the endpoint whose turn it is. */
function takeTurn(code: Assembler, view: View, parts: ProgramParts, none: string): void {
  code
    .lookUp(parts.maps[view.family].services, frame.slot)
    .jumpIf('r0', '==', 0, none)
    .set('r2', 1)
    .fetchAndAdd('r0', service.turn, 'r2')
  countOfEndpoints(code, 'r1')
  code.set('r0', 'r2').compute('modulo', 'r0', 'r1')
}

function countOfEndpoints(code: Assembler, to: Register): void {
  code
    .set(to, 'r9')
    .compute('shift right', to, service.count.shift)
    .compute('and', to, service.count.mask)
}

/** Writes a place to the frame. `index` counts from the first endpoint of the service in r9. */
function storePlace(code: Assembler, index: Register, at: number): void {
  code
    .set('r3', 'r9')
    .compute('and', 'r3', 2 ** service.first.bits - 1)
    .compute('add', 'r3', index)
  writeNumber(code, at, 'r3')
}

/** Chooses the endpoint at the place in the frame, if it still belongs to the service in r9. */
function takeEndpoint(code: Assembler, view: View, parts: ProgramParts, none: string): void {
  const backend = backendOf(view.family)
  const member = memberKeyOf(view.family)
  code.lookUp(parts.maps[view.family].backends, frame.place).jumpIf('r0', '==', 0, none)
  // The last word has port and tag, and in IPv4 the address, too. One load reads what was written
  // together.
  code
    .load('r3', 'u64', 'r0', 8 * (backend.words - 1))
    .set('r1', 'r3')
    .compute('shift right', 'r1', (backend.tag % 8) * 8)
    .compute('and', 'r1', service.tag.mask)
    .set('r2', 'r9')
    .compute('shift right', 'r2', service.tag.shift)
    .compute('and', 'r2', service.tag.mask)
    .jumpIf('r1', '!=', 'r2', none)
    .set('r4', 'r3')
    .compute('shift right', 'r4', (backend.port % 8) * 8)
    .compute('and', 'r4', 0xffff)
    .compute('shift left', 'r3', 32)
    .compute('shift right', 'r3', 32)
  const ip6: Place = { base: 'r0', at: 0, size: 'u32' }
  writeMember(code, view, [
    ...(view.family === 'IPv4'
      ? [{ at: member.address, value: 'r3' as const }]
      : addressFields(view.words, ip6, member.address)),
    { at: member.port, value: 'r4' },
  ])
}
