import { readFileSync } from 'node:fs'
import { isDeepStrictEqual } from 'node:util'
import { KernelError } from '../../errors.js'
import { failureOf, kernelErrorOf } from '../netlink/failure.js'
import { readString } from '../netlink/message-reader.js'
import { countProcessors } from '../../platform.js'
import { Attributes, nativeBytes } from './attributes.js'
import { keyType, loadTypes, typesOfSocketMap, valueType } from './btf.js'
import { commands, readInfo, run } from './commands.js'
import { errno } from '../sockets/errno.js'
import type { SystemCalls } from './system-calls.js'

export interface MapSpec {
  /** For bpftool and for messages; the kernel keeps 15 characters. */
  readonly name: string
  readonly kind: MapKind
  readonly keyBytes: number
  readonly valueBytes: number
  /** 0 for a `per-socket` map. */
  readonly entries: number
}

/**
 * `hash` takes memory as it fills. `recent` drops the entry that was used least recently. `mapped`
 * is an array in the memory of this process. `per-processor` is a hash with a value for each
 * processor; the kernel returns them one behind the other. `per-socket` keeps a value with each
 * socket. `ring` holds records that programs write to this process; its `entries` are bytes.
 */
const kinds = {
  hash: { type: 1, flags: 1 },
  recent: { type: 9, flags: 0 },
  array: { type: 2, flags: 0 },
  mapped: { type: 2, flags: 0x400 },
  'per-processor': { type: 5, flags: 1 },
  'per-socket': { type: 24, flags: 1 },
  ring: { type: 27, flags: 0 },
} as const
type MapKind = keyof typeof kinds

const mapKinds: readonly MapKind[] = Object.keys(kinds).filter(isMapKind)

function isMapKind(name: string): name is MapKind {
  return name in kinds
}

export type MapEntry = readonly [key: Uint8Array, value: Uint8Array]

/** The most entries of one call. A call that lists a map also moves about `batchBytes` at most. */
const batchSize = 4096
const batchBytes = 2 ** 20
const smallestBatch = 128

/** A map of the kernel that this process holds open. */
export class BpfMap {
  readonly spec: MapSpec
  readonly fd: number
  readonly #calls: SystemCalls
  readonly #key: Buffer
  readonly #value: Buffer
  readonly #valueBytes: number
  readonly #element: Attributes
  /** For commands that take only a key: the kernel refuses them if another field is set. */
  readonly #keyOnly: Attributes

  private constructor(calls: SystemCalls, spec: MapSpec, fd: number) {
    this.#calls = calls
    this.spec = spec
    this.fd = fd
    this.#key = nativeBytes(spec.keyBytes)
    this.#valueBytes = bytesToldOf(spec)
    this.#value = nativeBytes(this.#valueBytes)
    this.#element = new Attributes(calls, 32)
      .u32(0, fd)
      .pointer(8, this.#key)
      .pointer(16, this.#value)
    this.#keyOnly = new Attributes(calls, 16).u32(0, fd).pointer(8, this.#key)
  }

  static create(calls: SystemCalls, spec: MapSpec): BpfMap {
    const { type, flags } = kinds[spec.kind]
    const attributes = new Attributes(calls, 72)
      .u32(0, type)
      .u32(4, spec.keyBytes)
      .u32(8, spec.valueBytes)
      .u32(12, spec.entries)
      .u32(16, flags)
      .name(28, spec.name)
    const types =
      spec.kind === 'per-socket' ? loadTypes(calls, typesOfSocketMap(spec.valueBytes)) : undefined
    if (types !== undefined) attributes.u32(48, types).u32(52, keyType).u32(56, valueType)
    try {
      const fd = run(calls, 'createMap', attributes, `create eBPF map ${spec.name}`)
      return new BpfMap(calls, spec, fd)
    } finally {
      if (types !== undefined) calls.close(types)
    }
  }

  /** A map that is open already, for instance by a pin. Throws if the specification differs. */
  static open(calls: SystemCalls, spec: MapSpec, fd: number): BpfMap {
    const found = specOf(calls, fd, `look at eBPF map ${spec.name}`)
    if (isDeepStrictEqual({ ...found, name: spec.name }, spec)) return new BpfMap(calls, spec, fd)
    calls.close(fd)
    throw new KernelError('invalid', `open eBPF map ${spec.name}: it has another layout`)
  }

  /** The kernel's number of this map. Another map gets the same number only after a long time. */
  get id(): number {
    const action = `look at eBPF map ${this.spec.name}`
    return readInfo(this.#calls, this.fd, nativeBytes(8), action).readUInt32LE(4)
  }

  /** Opens a map by its number; undefined when this program does not know its kind. */
  static fromId(calls: SystemCalls, id: number): BpfMap | undefined {
    const action = `open eBPF map ${id}`
    const fd = run(calls, 'mapFromId', new Attributes(calls, 12).u32(0, id), action)
    const spec = specOf(calls, fd, action)
    if (spec) return new BpfMap(calls, spec, fd)
    calls.close(fd)
    return undefined
  }

  /**
   * Adds or replaces an entry; programs see the old value or the new one. Zeros fill a short value.
   */
  update(key: Uint8Array, value: Uint8Array): void {
    this.#key.set(key)
    this.#value.fill(0).set(value)
    run(this.#calls, 'update', this.#element, `write to eBPF map ${this.spec.name}`)
  }

  /** False when there was no such entry. */
  delete(key: Uint8Array): boolean {
    return this.#found('delete', key, this.#keyOnly)
  }

  lookup(key: Uint8Array): Buffer | undefined {
    return this.#found('lookup', key, this.#element) ? Buffer.from(this.#value) : undefined
  }

  updateAll(entries: readonly MapEntry[]): void {
    const { keyBytes, name } = this.spec
    const valueBytes = this.#valueBytes
    for (let from = 0; from < entries.length; from += batchSize) {
      const part = entries.slice(from, from + batchSize)
      const keys = nativeBytes(keyBytes * part.length)
      const values = nativeBytes(valueBytes * part.length)
      for (const [index, [key, value]] of part.entries()) {
        keys.set(key, index * keyBytes)
        values.set(value, index * valueBytes)
      }
      const attributes = this.#batch(keys, values, part.length)
      run(
        this.#calls,
        'updateBatch',
        attributes,
        `write ${part.length} entries to eBPF map ${name}`,
      )
    }
  }

  /** Deletes the entries with these keys, as far as they exist. */
  deleteAll(keys: readonly Uint8Array[]): void {
    for (const key of keys) this.delete(key)
  }

  /** All entries. An entry that others change meanwhile may be missing or come twice. */
  entries(): readonly (readonly [key: Buffer, value: Buffer])[] {
    const { keyBytes } = this.spec
    const valueBytes = this.#valueBytes
    const found: [Buffer, Buffer][] = []
    for (const { keys, values, count } of this.#batches()) {
      for (let index = 0; index < count; index++) {
        found.push([
          Buffer.from(keys.subarray(index * keyBytes, (index + 1) * keyBytes)),
          Buffer.from(values.subarray(index * valueBytes, (index + 1) * valueBytes)),
        ])
      }
    }
    return found
  }

  /** The number of all entries. */
  count(): number {
    let sum = 0
    for (const { count } of this.#batches()) sum += count
    return sum
  }

  /** All entries in memory that the next batch uses again. */
  *#batches(): Generator<{
    readonly keys: Buffer
    readonly values: Buffer
    readonly count: number
  }> {
    const { keyBytes, name } = this.spec
    const valueBytes = this.#valueBytes
    const most = Math.max(smallestBatch, Math.floor(batchBytes / (keyBytes + valueBytes)))
    const size = Math.min(batchSize, most)
    const keys = nativeBytes(keyBytes * size)
    const values = nativeBytes(valueBytes * size)
    const [place, next] = [nativeBytes(Math.max(keyBytes, 8)), nativeBytes(Math.max(keyBytes, 8))]
    for (let isFirst = true; ; isFirst = false) {
      const attributes = this.#batch(keys, values, size).pointer(8, next)
      if (!isFirst) attributes.pointer(0, place)
      const result = this.#calls.bpf(commands.lookupBatch, attributes.bytes)
      if (result < 0 && result !== -errno.ENOENT) {
        throw kernelErrorOf(failureOf(-result), `list eBPF map ${name}`)
      }
      yield { keys, values, count: attributes.bytes.readUInt32LE(32) }
      if (result < 0) return
      place.set(next)
    }
  }

  close(): void {
    this.#calls.close(this.fd)
  }

  #found(command: 'delete' | 'lookup', key: Uint8Array, attributes: Attributes): boolean {
    this.#key.set(key)
    const result = this.#calls.bpf(commands[command], attributes.bytes)
    if (result >= 0) return true
    if (result === -errno.ENOENT) return false
    throw kernelErrorOf(failureOf(-result), `${command} in eBPF map ${this.spec.name}`)
  }

  #batch(keys: Buffer, values: Buffer, count: number): Attributes {
    return new Attributes(this.#calls, 56)
      .pointer(16, keys)
      .pointer(24, values)
      .u32(32, count)
      .u32(36, this.fd)
  }
}

/** What the kernel tells of a map; undefined for an unknown kind. Closes the map after a failure. */
function specOf(calls: SystemCalls, fd: number, action: string): MapSpec | undefined {
  const info = openTogether((open) => {
    open({ close: () => calls.close(fd) })
    return readInfo(calls, fd, nativeBytes(40), action)
  })
  const [type, keyBytes = 0, valueBytes = 0, entries = 0, flags] = [0, 8, 12, 16, 20].map((at) =>
    info.readUInt32LE(at),
  )
  const kind = mapKinds.find((each) => kinds[each].type === type && kinds[each].flags === flags)
  const name = readString(info.subarray(24, 40))
  return kind && { name, kind, keyBytes, valueBytes, entries }
}

interface Closable {
  close(): void
}

/** Runs `act`, which opens things. If it fails, what was opened is closed. */
export function openTogether<T>(act: (open: <O extends Closable>(one: O) => O) => T): T {
  const opened: Closable[] = []
  try {
    return act((one) => {
      opened.push(one)
      return one
    })
  } catch (error) {
    for (const each of opened) each.close()
    throw error
  }
}

/**
 * The number of bytes that the kernel reads or writes for one value. A processor that is off has a
 * value, too.
 */
function bytesToldOf({ kind, valueBytes }: MapSpec): number {
  if (kind !== 'per-processor') return valueBytes
  return valueBytes * countProcessors(readFileSync('/sys/devices/system/cpu/possible', 'utf8'))
}
