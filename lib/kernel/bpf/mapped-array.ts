import { BpfMap, openTogether, type MapSpec } from './map.js'
import type { SystemCalls } from './system-calls.js'

const wordBytes = 8

/**
 * An array of the kernel in the memory of this process. Programs read it while it is written, so a
 * word is always stored as a whole: a write byte by byte would show them half of an address.
 */
export class MappedArray {
  readonly map: BpfMap
  readonly wordsPerEntry: number
  readonly #calls: SystemCalls
  readonly #words: BigInt64Array

  /**
   * Entries have whole words, because the kernel rounds the entries of an array up to words anyway.
   */
  constructor(
    calls: SystemCalls,
    spec: Pick<MapSpec, 'name' | 'entries'> & { readonly wordsPerEntry: number },
  ) {
    const { name, entries, wordsPerEntry } = spec
    const valueBytes = wordsPerEntry * wordBytes
    const kind = { kind: 'mapped', keyBytes: 4 } as const
    this.#calls = calls
    this.wordsPerEntry = wordsPerEntry
    this.map = BpfMap.create(calls, { name, ...kind, valueBytes, entries })
    this.#words = openTogether((open) => calls.mapWords(open(this.map).fd, valueBytes * entries))
  }

  /** Programs refer to the map by it. */
  get fd(): number {
    return this.map.fd
  }

  get entries(): number {
    return this.map.spec.entries
  }

  /** Programs see the old word or this one. */
  store(entry: number, word: number, value: bigint): void {
    Atomics.store(this.#words, this.#at(entry, word), BigInt.asIntN(64, value))
  }

  /** Stores the words of an entry one after the other. */
  storeEntry(entry: number, words: BigInt64Array): void {
    const at = this.#at(entry, words.length - 1) - words.length + 1
    for (let word = 0; word < words.length; word++) {
      Atomics.store(this.#words, at + word, words[word] ?? 0n)
    }
  }

  holdsEntry(entry: number, words: BigInt64Array): boolean {
    const at = this.#at(entry, words.length - 1) - words.length + 1
    return words.every((word, index) => Atomics.load(this.#words, at + index) === word)
  }

  load(entry: number, word: number): bigint {
    return BigInt.asUintN(64, Atomics.load(this.#words, this.#at(entry, word)))
  }

  close(): void {
    this.#calls.unmap(this.#words.buffer)
    this.map.close()
  }

  #at(entry: number, word: number): number {
    if (entry >= this.entries || word >= this.wordsPerEntry) {
      throw new RangeError(`eBPF map ${this.map.spec.name} has no entry ${entry}, word ${word}`)
    }
    return entry * this.wordsPerEntry + word
  }
}
