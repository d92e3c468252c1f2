import { BpfMap, openTogether } from './map.js'
import type { SystemCalls } from './system-calls.js'

/** A head precedes each record: the record's length, and two bits about it. */
const headBytes = 8
const isBusy = 0x8000_0000
const isDiscarded = 0x4000_0000
const lengthMask = 0x3fff_ffff

/** A ring of records that programs write and this process reads without system calls. Linux 5.8. */
export class BpfRing {
  readonly map: BpfMap
  readonly #calls: SystemCalls
  readonly #bytes: number
  /** The position up to which this process has read. Programs write at most one round beyond it. */
  readonly #position: BigInt64Array
  /**
   * The page that this process writes, the page that programs write, and the records. The kernel
   * maps the records twice, so that none is cut at the end.
   */
  readonly #memory: ArrayBuffer
  readonly #words: Int32Array
  readonly #written: number
  readonly #records: Buffer
  #read = 0

  /** `bytes` is a power of 2, and a multiple of the page size. */
  constructor(calls: SystemCalls, name: string, bytes: number) {
    const { pageBytes } = calls
    this.#calls = calls
    this.#bytes = bytes
    const spec = { name, kind: 'ring', keyBytes: 0, valueBytes: 0, entries: bytes } as const
    this.map = BpfMap.create(calls, spec)
    const [position, memory] = openTogether((open) => {
      const { fd } = open(this.map)
      return [
        calls.mapWords(fd, pageBytes),
        calls.mapReadOnly(fd, 2 * (pageBytes + bytes)),
      ] as const
    })
    this.#position = position
    this.#memory = memory
    this.#words = new Int32Array(memory)
    this.#written = pageBytes / 4
    this.#records = Buffer.from(memory, 2 * pageBytes)
  }

  /** Visits the records written so far, whose place is free afterwards. Returns their number. */
  read(visit: (records: Buffer, start: number, end: number) => void): number {
    const first = this.#records.byteOffset
    // The lower 32 bits of both positions are enough for their difference.
    let left = (Atomics.load(this.#words, this.#written) - (this.#read | 0)) >>> 0
    let count = 0
    let at = this.#read % this.#bytes
    while (left > 0) {
      const head = Atomics.load(this.#words, (first + at) >> 2)
      if ((head & isBusy) !== 0) break
      const length = head & lengthMask
      if ((head & isDiscarded) === 0) {
        visit(this.#records, at + headBytes, at + headBytes + length)
        count++
      }
      const step = headBytes + ((length + 7) & ~7)
      left -= step
      this.#read += step
      at = (at + step) % this.#bytes
    }
    Atomics.store(this.#position, 0, BigInt(this.#read))
    return count
  }

  close(): void {
    this.#calls.unmap(this.#memory)
    this.#calls.unmap(this.#position.buffer)
    this.map.close()
  }
}
