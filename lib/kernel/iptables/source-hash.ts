import { bytecode } from './matches.js'
import type { Match } from './rule.js'

type Instruction = readonly [code: number, jumpTrue: number, jumpFalse: number, value: number]

const load = 0x20
const toX = 0x07
const multiply = 0x24
const remainder = 0x94
const shiftRight = 0x74
const flipByX = 0xac
const isEqual = 0x15
const answer = 0x06

/** Odd numbers whose bits are mixed well; each multiplication spreads the lower bits upwards. */
const first = 0x9e3779b1
const second = 0x85ebca77

/**
 * Divides all clients into `count` parts and matches part `index`. The kernel has no match that
 * hashes an address, so a classic BPF program does.
 */
export function sourceIn(
  family: 'IPv4' | 'IPv6',
  { index, count }: { readonly index: number; readonly count: number },
): Match {
  const [start, words] = family === 'IPv4' ? [12, 1] : [8, 4]
  const program: Instruction[] = [[load, 0, 0, start]]
  for (let word = 1; word < words; word++) {
    program.push([multiply, 0, 0, first], [toX, 0, 0, 0])
    program.push([load, 0, 0, start + 4 * word], [flipByX, 0, 0, 0])
  }
  program.push([multiply, 0, 0, first], ...folded(15), [multiply, 0, 0, second], ...folded(13))
  program.push([remainder, 0, 0, count], [isEqual, 0, 1, index])
  return bytecode([...program, [answer, 0, 0, 65535], [answer, 0, 0, 0]])
}

/** Brings upper bits down, where a remainder sees them. */
const folded = (bits: number): readonly Instruction[] => [
  [toX, 0, 0, 0],
  [shiftRight, 0, 0, bits],
  [flipByX, 0, 0, 0],
]

/** Whether {@link sourceIn} made the program. Our other programs compare addresses. */
export function isSourceHash(bytecode: string): boolean {
  return bytecode.includes(`,${remainder} 0 0 `)
}

/** The kernel's answer for a header, for `explain`; 0 means no match. */
export function runBytecode(text: string, header: Uint8Array): number {
  const [, ...lines] = text.split(',')
  const program = lines.map((line) => line.split(' ').map(Number))
  const words = new DataView(header.buffer, header.byteOffset, header.byteLength)
  let a = 0
  let x = 0
  for (let at = 0; at < program.length; at++) {
    const [code = 0, jumpTrue = 0, jumpFalse = 0, value = 0] = program[at] ?? []
    if (code === answer) return value
    if (code === load) a = words.getUint32(value)
    else if (code === toX) x = a
    else if (code === multiply) a = Math.imul(a, value) >>> 0
    else if (code === remainder) a %= value
    else if (code === shiftRight) a >>>= value
    else if (code === flipByX) a = (a ^ x) >>> 0
    else if (code === isEqual) at += a === value ? jumpTrue : jumpFalse
    else if (code === isEqualToX) at += a === x ? jumpTrue : jumpFalse
    else throw new RangeError(`bytecode ${text}: instruction ${code} is not known`)
  }
  return 0
}

const isEqualToX = 0x1d
