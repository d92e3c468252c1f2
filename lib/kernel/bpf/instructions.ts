/** The instruction set of eBPF as far as programs here need it: eight bytes each. */

/** A second operand: a register, or a number of 32 bits that is sign-extended. */
export type Operand = Register | number

export const registers = {
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
} as const
export type Register = keyof typeof registers

export const sizes = { u32: 0x00, u16: 0x08, u8: 0x10, u64: 0x18 } as const
export type Size = keyof typeof sizes

export const comparisons = {
  '==': 0x10,
  '>': 0x20,
  '>=': 0x30,
  'has bits': 0x40,
  '!=': 0x50,
  '<': 0xa0,
  '<=': 0xb0,
  'signed <': 0xc0,
} as const
export type Comparison = keyof typeof comparisons

export const arithmetics = {
  add: 0x00,
  subtract: 0x10,
  or: 0x40,
  and: 0x50,
  'shift left': 0x60,
  'shift right': 0x70,
  multiply: 0x20,
  modulo: 0x90,
  set: 0xb0,
} as const
export type Arithmetic = keyof typeof arithmetics

/** The lowest three bits of an operation code. */
export const classes = {
  load: 0x01,
  storeNumber: 0x02,
  store: 0x03,
  jump: 0x05,
  alu64: 0x07,
} as const
export const memory = 0x60
export const atomic = 0xc0
export const fromRegister = 0x08
export const wideNumber = 0x18
export const mapDescriptor = 1

export const jumps = { call: 0x80, exit: 0x90 } as const

/**
 * Changes of a number in memory in one step, even if other processors change the same number. An
 * operation that fetches the old number puts it into the register of the value.
 */
export const atomics = { add: 0x00, 'fetch and add': 0x01, exchange: 0xe1 } as const

export interface Instruction {
  readonly code: number
  readonly to: number
  readonly from: number
  readonly offset: number
  readonly number: number
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
