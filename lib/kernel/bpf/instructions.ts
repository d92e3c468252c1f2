/** The instruction set of eBPF as far as programs here need it: eight bytes each. */

export type Register = 'r0' | 'r1' | 'r2' | 'r3' | 'r4' | 'r5' | 'r6' | 'r7' | 'r8' | 'r9' | 'frame'

/** A second operand: a register, or a number of 32 bits that is sign-extended. */
export type Operand = Register | number

export type Size = 'u8' | 'u16' | 'u32' | 'u64'

export type Comparison = '==' | '!=' | '>' | '>=' | '<' | '<=' | 'signed <' | 'has bits'

export type Arithmetic =
  | 'add'
  | 'subtract'
  | 'or'
  | 'and'
  | 'shift left'
  | 'shift right'
  | 'modulo'
  | 'multiply'
  | 'set'

const registers: Readonly<Record<Register, number>> = {
  r0: 0,
  r1: 1,
  r2: 2,
  r3: 3,
  r4: 4,
  r5: 5,
  r6: 6,
  r7: 7,
  r8: 8,
  r9: 9,
  frame: 10,
}

const sizes: Readonly<Record<Size, number>> = { u32: 0x00, u16: 0x08, u8: 0x10, u64: 0x18 }

const comparisons: Readonly<Record<Comparison, number>> = {
  '==': 0x10,
  '>': 0x20,
  '>=': 0x30,
  'has bits': 0x40,
  '!=': 0x50,
  '<': 0xa0,
  '<=': 0xb0,
  'signed <': 0xc0,
}

const arithmetics: Readonly<Record<Arithmetic, number>> = {
  add: 0x00,
  subtract: 0x10,
  or: 0x40,
  and: 0x50,
  'shift left': 0x60,
  'shift right': 0x70,
  multiply: 0x20,
  modulo: 0x90,
  set: 0xb0,
}

/** The lowest three bits of an operation code. */
const classes = { load: 0x01, storeNumber: 0x02, store: 0x03, jump: 0x05, alu64: 0x07 } as const
const memory = 0x60
const atomic = 0xc0
const fromRegister = 0x08
const wideNumber = 0x18
const mapDescriptor = 1

export interface Instruction {
  readonly code: number
  readonly to: number
  readonly from: number
  readonly offset: number
  readonly number: number
}

function instruction(code: number, rest: Partial<Omit<Instruction, 'code'>>): Instruction {
  return { code, to: 0, from: 0, offset: 0, number: 0, ...rest }
}

const operand = (value: Operand) =>
  typeof value === 'number'
    ? { bit: 0, fields: { number: value } }
    : { bit: fromRegister, fields: { from: registers[value] } }

export function compute(operation: Arithmetic, to: Register, value: Operand): Instruction {
  const { bit, fields } = operand(value)
  return instruction(classes.alu64 | arithmetics[operation] | bit, {
    to: registers[to],
    ...fields,
  })
}

export function load(to: Register, size: Size, from: Register, offset: number): Instruction {
  return instruction(classes.load | memory | sizes[size], {
    to: registers[to],
    from: registers[from],
    offset,
  })
}

export function store(size: Size, to: Register, offset: number, value: Operand): Instruction {
  const { bit, fields } = operand(value)
  const kind = bit === 0 ? classes.storeNumber : classes.store
  return instruction(kind | memory | sizes[size], { to: registers[to], offset, ...fields })
}

/** A change of a number in memory in one step, even if other processors change the same number. */
type AtomicOperation = 'add' | 'fetch and add' | 'exchange'

const atomics: Readonly<Record<AtomicOperation, number>> = {
  add: 0x00,
  'fetch and add': 0x01,
  exchange: 0xe1,
}

/** An operation that fetches the old number puts it into the register of the value. */
export function atomically(
  operation: AtomicOperation,
  size: 'u32' | 'u64',
  to: Register,
  offset: number,
  value: Register,
): Instruction {
  return instruction(classes.store | atomic | sizes[size], {
    to: registers[to],
    from: registers[value],
    offset,
    number: atomics[operation],
  })
}

/** A constant of 64 bits takes the place of two instructions. */
export function wide(to: Register, value: bigint): readonly [Instruction, Instruction] {
  const half = (bits: bigint) => Number(BigInt.asIntN(32, bits))
  return [
    instruction(wideNumber, { to: registers[to], number: half(value) }),
    instruction(0, { number: half(value >> 32n) }),
  ]
}

export function mapAddress(to: Register, fd: number): readonly [Instruction, Instruction] {
  return [
    instruction(wideNumber, { to: registers[to], from: mapDescriptor, number: fd }),
    instruction(0, {}),
  ]
}

/** The offset of a jump counts instructions after the jump. */
export function jump(offset: number): Instruction {
  return instruction(classes.jump, { offset })
}

export function jumpIf(
  one: Register,
  comparison: Comparison,
  other: Operand,
  offset: number,
): Instruction {
  const { bit, fields } = operand(other)
  const code = classes.jump | comparisons[comparison] | bit
  return instruction(code, { to: registers[one], offset, ...fields })
}

export function call(helper: number): Instruction {
  return instruction(classes.jump | 0x80, { number: helper })
}

export function exit(): Instruction {
  return instruction(classes.jump | 0x90, {})
}

export const instructionBytes = 8

/** The instructions as the kernel reads them on a little-endian machine. */
export function bytesOf(instructions: readonly Instruction[]): Buffer {
  const bytes = Buffer.alloc(instructions.length * instructionBytes)
  for (const [index, each] of instructions.entries()) {
    const at = index * instructionBytes
    bytes.writeUInt8(each.code, at)
    bytes.writeUInt8((each.from << 4) | each.to, at + 1)
    bytes.writeInt16LE(each.offset, at + 2)
    bytes.writeInt32LE(each.number | 0, at + 4)
  }
  return bytes
}
