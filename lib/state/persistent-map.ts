/**
 * An immutable map from string to object whose copies share almost everything: `with` and
 * `without` copy one bucket of some entries, and comparing two generations skips every bucket
 * they share. That is what makes the cost of a change independent of the size of the cluster.
 */

const bucketCount = 1024

type Bucket<V> = ReadonlyMap<string, V>

const emptyBucket: Bucket<never> = new Map<string, never>()

export interface MapChanges<V> {
  readonly added: readonly (readonly [key: string, value: V])[]
  readonly changed: readonly (readonly [key: string, value: V, previous: V])[]
  readonly removed: readonly (readonly [key: string, previous: V])[]
}

/** Remembers what was derived from which bucket, see {@link PersistentMap.derive}. */
export type DerivedBuckets<V, W> = WeakMap<Bucket<V>, Bucket<W>>

export class PersistentMap<V> {
  readonly #buckets: readonly Bucket<V>[]
  readonly size: number

  private constructor(buckets: readonly Bucket<V>[], size: number) {
    this.#buckets = buckets
    this.size = size
  }

  static empty<V>(): PersistentMap<V> {
    return new PersistentMap<V>(
      Array.from({ length: bucketCount }, () => emptyBucket),
      0,
    )
  }

  static from<V>(entries: Iterable<readonly [string, V]>): PersistentMap<V> {
    return PersistentMap.empty<V>().update(entries)
  }

  get(key: string): V | undefined {
    return this.#buckets[bucketOf(key)]?.get(key)
  }

  has(key: string): boolean {
    return this.#buckets[bucketOf(key)]?.has(key) ?? false
  }

  /** A copy with the entries set; a value of `undefined` removes its key. Same map when nothing differs. */
  update(entries: Iterable<readonly [string, V | undefined]>): PersistentMap<V> {
    const fresh = new Map<number, Map<string, V>>()
    let size = this.size
    for (const [key, value] of entries) {
      const index = bucketOf(key)
      let bucket = fresh.get(index)
      const present = bucket ?? this.#buckets[index]
      if (present?.get(key) === value && (value !== undefined || !present?.has(key))) continue
      if (!bucket) {
        bucket = new Map(this.#buckets[index])
        fresh.set(index, bucket)
      }
      if (bucket.has(key)) size--
      if (value === undefined) bucket.delete(key)
      else {
        bucket.set(key, value)
        size++
      }
    }
    if (fresh.size === 0) return this
    const buckets = this.#buckets.slice()
    for (const [index, bucket] of fresh) buckets[index] = bucket
    return new PersistentMap(buckets, size)
  }

  *entries(): IterableIterator<[string, V]> {
    for (const bucket of this.#buckets) if (bucket.size > 0) yield* bucket
  }

  *keys(): IterableIterator<string> {
    for (const bucket of this.#buckets) if (bucket.size > 0) yield* bucket.keys()
  }

  *values(): IterableIterator<V> {
    for (const bucket of this.#buckets) if (bucket.size > 0) yield* bucket.values()
  }

  [Symbol.iterator](): IterableIterator<[string, V]> {
    return this.entries()
  }

  /**
   * The map with every value replaced by `fn(value)`. Buckets seen before are taken from `memo`,
   * and within a changed bucket `fn` should memoize by the identity of its argument, so that
   * unchanged values keep their derived references.
   */
  derive<W>(memo: DerivedBuckets<V, W>, fn: (value: V, key: string) => W): PersistentMap<W> {
    const buckets = this.#buckets.map((bucket) => {
      if (bucket.size === 0) return emptyBucket
      let derived = memo.get(bucket)
      if (!derived) {
        derived = new Map(Array.from(bucket, ([key, value]) => [key, fn(value, key)]))
        memo.set(bucket, derived)
      }
      return derived
    })
    return new PersistentMap<W>(buckets, this.size)
  }

  /** What changed since `previous`, by reference; shared buckets cost nothing. */
  since(previous: PersistentMap<V> | undefined): MapChanges<V> {
    const added: [string, V][] = []
    const changed: [string, V, V][] = []
    const removed: [string, V][] = []
    for (let index = 0; index < bucketCount; index++) {
      const now = this.#buckets[index] ?? emptyBucket
      const before = (previous ? previous.#buckets[index] : undefined) ?? emptyBucket
      if (now === before) continue
      for (const [key, value] of now) {
        const old = before.get(key)
        if (old === undefined) added.push([key, value])
        else if (old !== value) changed.push([key, value, old])
      }
      for (const [key, old] of before) if (!now.has(key)) removed.push([key, old])
    }
    return { added, changed, removed }
  }
}

/** FNV-1a; any spread will do, but it must not depend on the order of insertion. */
function bucketOf(key: string): number {
  let hash = 0x811c9dc5
  for (let index = 0; index < key.length; index++) {
    hash = Math.imul(hash ^ key.charCodeAt(index), 0x01000193)
  }
  return (hash ^ (hash >>> 16)) & (bucketCount - 1)
}
