import {
  arithmetics,
  atomic,
  atomics,
  bytesOf,
  classes,
  comparisons,
  fromRegister,
  jumps,
  mapDescriptor,
  memory,
  registers,
  sizes,
  wideNumber,
  type Arithmetic,
  type Comparison,
  type Instruction,
  type Operand,
  type Register,
  type Size,
} from './instructions.js'

/** Functions of the kernel that programs may call, with the numbers of `enum bpf_func_id`. */
const helpers = {
  map_lookup_elem: 1,
  map_update_elem: 2,
  map_delete_elem: 3,
  ktime_get_ns: 5,
  get_prandom_u32: 7,
  get_current_pid_tgid: 14,
  skb_load_bytes: 26,
  get_socket_cookie: 46,
  sock_ops_cb_flags_set: 59,
  sk_storage_get: 107,
  sk_storage_delete: 108,
  get_netns_cookie: 122,
  ringbuf_reserve: 131,
  ringbuf_submit: 132,
  ringbuf_discard: 133,
  set_retval: 187,
} as const

type Helper = keyof typeof helpers

/** A map that a program refers to; the kernel finds it by our descriptor. */
export interface MapReference {
  readonly fd: number
}

/** A register with an address, and an offset from there. */
export type MemoryPlace = readonly [base: Register, offset: number]

/** The offset of a jump is known once all labels are known. It counts instructions after the jump. */
interface Line extends Instruction {
  readonly label: string | undefined
}

const farthestJump = 2 ** 15 - 1

/**
 * Writes a program instruction by instruction. Registers r1 to r5 are lost with every call of a
 * helper, whose result is in r0; r6 to r9 are kept. Faults that the kernel would tell only by
 * number are found here, with the name of the label.
 */
export class Assembler {
  readonly #lines: Line[] = []
  readonly #labels = new Map<string, number>()
  #unique = 0

  /** A name that no other label of this program has. */
  freshLabel(prefix: string): string {
    return `${prefix} ${++this.#unique}`
  }

  /** Names the next instruction, so that a jump can lead to it. */
  label(name: string): this {
    if (this.#labels.has(name)) throw new Error(`assemble: label "${name}" is at two places`)
    this.#labels.set(name, this.#lines.length)
    return this
  }

  set(to: Register, value: Operand): this {
    return this.compute('set', to, value)
  }

  /** A constant of 64 bits takes the place of two instructions. */
  setWide(to: Register, value: bigint): this {
    const half = (bits: bigint) => Number(BigInt.asIntN(32, bits))
    this.#add(wideNumber, { to: registers[to], number: half(value) })
    return this.#add(0, { number: half(value >> 32n) })
  }

  /** `to` becomes the result of the operation on `to` and the value, in 64 bits without a sign. */
  compute(operation: Arithmetic, to: Register, value: Operand): this {
    const { bit, fields } = operand(value)
    return this.#add(classes.alu64 | arithmetics[operation] | bit, {
      to: registers[to],
      ...fields,
    })
  }

  load(to: Register, size: Size, from: Register, offset: number): this {
    const fields = { to: registers[to], from: registers[from], offset }
    return this.#add(classes.load | memory | sizes[size], fields)
  }

  store(size: Size, to: Register, offset: number, value: Operand): this {
    const { bit, fields } = operand(value)
    const kind = bit === 0 ? classes.storeNumber : classes.store
    return this.#add(kind | memory | sizes[size], { to: registers[to], offset, ...fields })
  }

  atomicAdd(to: Register, offset: number, value: Register): this {
    return this.#atomically('add', 'u64', { to, offset, value })
  }

  /** Adds the value to a number in memory. The value's register then holds the old number. */
  fetchAndAdd(to: Register, offset: number, value: Register): this {
    return this.#atomically('fetch and add', 'u64', { to, offset, value })
  }

  /** Swaps the value's register, of 32 bits, with a number in memory. */
  exchange(to: Register, offset: number, value: Register): this {
    return this.#atomically('exchange', 'u32', { to, offset, value })
  }

  /** Sets the register to an address in the stack frame; offsets in the frame are negative. */
  frameAddress(to: Register, offset: number): this {
    return this.set(to, 'frame').compute('add', to, offset)
  }

  mapAddress(to: Register, map: MapReference): this {
    const fields = { to: registers[to], from: mapDescriptor, number: map.fd }
    return this.#add(wideNumber, fields).#add(0, {})
  }

  /** Leaves in r0 where the map has the value for the key in the frame; 0 if it has none. */
  lookUp(map: MapReference, key: number): this {
    return this.lookUpAt(map, ['frame', key])
  }

  lookUpAt(map: MapReference, key: MemoryPlace): this {
    return this.#withKey(map, key).call('map_lookup_elem')
  }

  /** Writes the value in the frame. Leaves 0 in r0 if that succeeds. */
  update(map: MapReference, key: MemoryPlace, value: number, flags = 0): this {
    return this.#withKey(map, key)
      .frameAddress('r3', value)
      .set('r4', flags)
      .call('map_update_elem')
  }

  /** Copies words of four bytes from one place in memory to another. Uses r1. */
  copyWords(words: number, [from, at]: MemoryPlace, [to, toAt]: MemoryPlace): this {
    for (let offset = 0; offset < 4 * words; offset += 4) {
      this.load('r1', 'u32', from, at + offset).store('u32', to, toAt + offset, 'r1')
    }
    return this
  }

  jump(label: string): this {
    return this.#add(classes.jump, {}, label)
  }

  jumpIf(one: Register, comparison: Comparison, other: Operand, label: string): this {
    const { bit, fields } = operand(other)
    const code = classes.jump | comparisons[comparison] | bit
    return this.#add(code, { to: registers[one], ...fields }, label)
  }

  call(helper: Helper): this {
    return this.#add(classes.jump | jumps.call, { number: helpers[helper] })
  }

  exit(): this {
    return this.#add(classes.jump | jumps.exit, {})
  }

  /** The program as the kernel reads it. */
  finish(): Buffer {
    const used = new Set<string>()
    const instructions = this.#lines.map((line, index) => {
      if (line.label === undefined) return line
      used.add(line.label)
      return { ...line, offset: this.#distance(index, line.label) }
    })
    for (const name of this.#labels.keys()) {
      if (!used.has(name)) throw new Error(`assemble: nothing jumps to label "${name}"`)
    }
    return bytesOf(instructions)
  }

  #distance(index: number, label: string): number {
    const at = this.#labels.get(label)
    if (at === undefined) throw new Error(`assemble: there is no label "${label}" to jump to`)
    if (at >= this.#lines.length) throw new Error(`assemble: label "${label}" is behind the end`)
    const distance = at - index - 1
    if (Math.abs(distance) > farthestJump) {
      throw new Error(`assemble: label "${label}" is too far away to jump to`)
    }
    return distance
  }

  #withKey(map: MapReference, [base, offset]: MemoryPlace): this {
    this.mapAddress('r1', map).set('r2', base)
    return offset === 0 ? this : this.compute('add', 'r2', offset)
  }

  #atomically(
    operation: keyof typeof atomics,
    size: 'u32' | 'u64',
    { to, offset, value }: { to: Register; offset: number; value: Register },
  ): this {
    return this.#add(classes.store | atomic | sizes[size], {
      to: registers[to],
      from: registers[value],
      offset,
      number: atomics[operation],
    })
  }

  #add(code: number, fields: Partial<Omit<Instruction, 'code'>>, label?: string): this {
    this.#lines.push({ code, to: 0, from: 0, offset: 0, number: 0, ...fields, label })
    return this
  }
}

const operand = (value: Operand) =>
  typeof value === 'number'
    ? { bit: 0, fields: { number: value } }
    : { bit: fromRegister, fields: { from: registers[value] } }
