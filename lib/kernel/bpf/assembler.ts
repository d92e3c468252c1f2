import {
  atomically,
  bytesOf,
  call,
  compute,
  exit,
  jump,
  jumpIf,
  load,
  mapAddress,
  store,
  wide,
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

/** A jump. Its distance is known once all labels are known. */
interface PendingJump {
  readonly label: string
  readonly with: (offset: number) => Instruction
}

type Line = Instruction | PendingJump

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
    return this.#add(compute('set', to, value))
  }

  setWide(to: Register, value: bigint): this {
    return this.#add(...wide(to, value))
  }

  /** `to` becomes the result of the operation on `to` and the value, in 64 bits without a sign. */
  compute(operation: Arithmetic, to: Register, value: Operand): this {
    return this.#add(compute(operation, to, value))
  }

  load(to: Register, size: Size, from: Register, offset: number): this {
    return this.#add(load(to, size, from, offset))
  }

  store(size: Size, to: Register, offset: number, value: Operand): this {
    return this.#add(store(size, to, offset, value))
  }

  atomicAdd(to: Register, offset: number, value: Register): this {
    return this.#add(atomically('add', 'u64', to, offset, value))
  }

  /** Adds the value to a number in memory. The value's register then holds the old number. */
  fetchAndAdd(to: Register, offset: number, value: Register): this {
    return this.#add(atomically('fetch and add', 'u64', to, offset, value))
  }

  /** Swaps the value's register, of 32 bits, with a number in memory. */
  exchange(to: Register, offset: number, value: Register): this {
    return this.#add(atomically('exchange', 'u32', to, offset, value))
  }

  /** Sets the register to an address in the stack frame; offsets in the frame are negative. */
  frameAddress(to: Register, offset: number): this {
    return this.set(to, 'frame').compute('add', to, offset)
  }

  mapAddress(to: Register, map: MapReference): this {
    return this.#add(...mapAddress(to, map.fd))
  }

  jump(label: string): this {
    this.#lines.push({ label, with: jump })
    return this
  }

  jumpIf(one: Register, comparison: Comparison, other: Operand, label: string): this {
    this.#lines.push({ label, with: (offset) => jumpIf(one, comparison, other, offset) })
    return this
  }

  call(helper: Helper): this {
    return this.#add(call(helpers[helper]))
  }

  exit(): this {
    return this.#add(exit())
  }

  /** The program as the kernel reads it. */
  finish(): Buffer {
    const used = new Set<string>()
    const instructions = this.#lines.map((line, index) => {
      if (!('label' in line)) return line
      used.add(line.label)
      return line.with(this.#distance(index, line.label))
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

  #add(...instructions: readonly Instruction[]): this {
    this.#lines.push(...instructions)
    return this
  }
}
