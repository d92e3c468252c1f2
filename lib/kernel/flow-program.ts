import { Assembler, type MapReference } from './bpf/assembler.js'
import { headerBytes } from './netlink/protocol.js'
import { flowHeaderBytes, flowStatus } from './conntrack-tuple.js'

/** A record in the ring has one of these lengths. A message about an IPv4 flow fits the first. */
const recordBytes = [256, 512] as const
/** The attributes to look at: the status is the fourth, or the fifth in a zone. */
const mostAttributes = 8
const header = -8

/**
 * A filter for the socket of tracked connections. It copies each message to a ring, which saves the
 * system call that receives it. The socket gets only messages that the filter cannot copy.
 */
export function flowProgram(ring: MapReference, onlyTranslated: boolean): Buffer {
  const program = new Assembler().set('r6', 'r1').load('r7', 'u32', 'r6', 0)
  if (onlyTranslated) dropUntranslated(program)
  program.jumpIf('r7', '<', headerBytes, 'take')
  for (const bytes of recordBytes) {
    const tooLong = program.freshLabel('too long')
    program
      .jumpIf('r7', '>', bytes, tooLong)
      .mapAddress('r1', ring)
      .set('r2', bytes)
      .set('r3', 0)
      .call('ringbuf_reserve')
      .jump('reserved')
      .label(tooLong)
  }
  return program
    .jump('take')
    .label('reserved')
    .jumpIf('r0', '==', 0, 'take')
    .set('r8', 'r0')
    .set('r1', 'r6')
    .set('r2', 0)
    .set('r3', 'r8')
    .set('r4', 'r7')
    .call('skb_load_bytes')
    .set('r1', 'r8')
    .set('r2', 0)
    .jumpIf('r0', '!=', 0, 'discard')
    .call('ringbuf_submit')
    .jump('drop')
    .label('discard')
    .call('ringbuf_discard')
    .label('take')
    .set('r0', -1)
    .exit()
    .label('drop')
    .set('r0', 0)
    .exit()
    .finish()
}

/** Drops messages about flows whose destination is not translated. */
function dropUntranslated(program: Assembler): void {
  program.set('r8', headerBytes + flowHeaderBytes)
  for (let attribute = 0; attribute < mostAttributes; attribute++) {
    const isOther = program.freshLabel('other attribute')
    load(program, 4)
    program
      .load('r1', 'u16', 'frame', header + 2)
      .compute('and', 'r1', 0x3fff)
      .jumpIf('r1', '!=', flowStatus.attribute, isOther)
      .compute('add', 'r8', 4)
    load(program, 4)
    program
      .load('r1', 'u8', 'frame', header + 3)
      .jumpIf('r1', 'has bits', flowStatus.isTranslated, 'translated')
      .jump('drop')
      .label(isOther)
      .load('r1', 'u16', 'frame', header)
      .compute('add', 'r1', 3)
      .compute('and', 'r1', 0xfffc)
      .compute('add', 'r8', 'r1')
  }
  program.jump('drop').label('translated')
}

/** Loads bytes of the message; r8 holds their offset. */
function load(program: Assembler, bytes: number): void {
  program
    .set('r1', 'r6')
    .set('r2', 'r8')
    .frameAddress('r3', header)
    .set('r4', bytes)
    .call('skb_load_bytes')
    .jumpIf('r0', '!=', 0, 'drop')
}
