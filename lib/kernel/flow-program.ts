import { Assembler, type MapReference } from './bpf/assembler.js'
import { headerBytes } from './netlink/protocol.js'
import { flowHeaderBytes, flowStatus } from './conntrack-tuple.js'

/** The place of a record has one of these lengths; a message about a flow of IPv4 has less than the first. */
const recordBytes = [256, 512] as const
/** The status is the fourth attribute, or the fifth in a zone. */
const mostAttributes = 8
const header = -8

/**
 * A filter at a socket that hears of tracked connections. It copies each message to a ring, which
 * saves the system call that would hand it over, and passes to the socket what it cannot copy.
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

/** Flows whose destination nobody has changed end here. */
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

/** The bytes of the message from r8 on. */
function load(program: Assembler, bytes: number): void {
  program
    .set('r1', 'r6')
    .set('r2', 'r8')
    .frameAddress('r3', header)
    .set('r4', bytes)
    .call('skb_load_bytes')
    .jumpIf('r0', '!=', 0, 'drop')
}
