/**
 * An immutable map from string to object. Its copies share almost everything: `update` copies only
 * the buckets that change and the branches that hold them. A comparison of two copies skips every
 * branch and bucket that they share. So the cost of a change does not depend on the size of the
 * cluster, and a change makes little garbage.
 */

const branchSize = 32
const bucketCount = branchSize * branchSize

type Bucket<V> = ReadonlyMap<string, V>

type Branch<V> = readonly Bucket<V>[]

const emptyBucket: Bucket<never> = new Map<string, never>()
const emptyBranch: Branch<never> = Array.from({ length: branchSize }, () => emptyBucket)

export interface MapChanges<V> {
  readonly added: readonly (readonly [key: string, value: V])[]
  readonly changed: readonly (readonly [key: string, value: V, previous: V])[]
  readonly removed: readonly (readonly [key: string, previous: V])[]
}

/** Remembers the map that was derived last, and its source; see {@link PersistentMap.derive}. */
export interface Derivation<V, W> {
  last?: { readonly from: PersistentMap<V>; readonly to: PersistentMap<W> }
}

export class PersistentMap<V> {
  readonly #branches: readonly Branch<V>[]
  readonly size: number

  private constructor(branches: readonly Branch<V>[], size: number) {
    this.#branches = branches
    this.size = size
  }

  static empty<V>(): PersistentMap<V> {
    return new PersistentMap<V>(
      Array.from({ length: branchSize }, () => emptyBranch),
      0,
    )
  }

  static from<V>(entries: Iterable<readonly [string, V]>): PersistentMap<V> {
    return PersistentMap.empty<V>().update(entries)
  }

  get(key: string): V | undefined {
    return this.#bucket(bucketOf(key)).get(key)
  }

  has(key: string): boolean {
    return this.#bucket(bucketOf(key)).has(key)
  }

  /** A copy with these entries; `undefined` removes a key. The same map when nothing differs. */
  update(entries: Iterable<readonly [string, V | undefined]>): PersistentMap<V> {
    const fresh = new Map<number, Map<string, V>>()
    let size = this.size
    for (const [key, value] of entries) {
      const index = bucketOf(key)
      let bucket = fresh.get(index)
      const present = bucket ?? this.#bucket(index)
      if (present.get(key) === value && (value !== undefined || !present.has(key))) continue
      if (!bucket) {
        bucket = new Map(present)
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
    const branches = this.#branches.slice()
    const copies = new Map<number, Bucket<V>[]>()
    for (const [index, bucket] of fresh) {
      const at = Math.floor(index / branchSize)
      const branch = copies.get(at) ?? branches[at]?.slice() ?? []
      branch[index % branchSize] = bucket
      copies.set(at, branch)
      branches[at] = branch
    }
    return new PersistentMap(branches, size)
  }

  /** A map with only these keys. Keys that are not in this map are left out. */
  pick(keys: readonly string[]): PersistentMap<V> {
    return PersistentMap.from(
      keys.flatMap((key) => {
        const value = this.get(key)
        return value === undefined ? [] : [[key, value] as const]
      }),
    )
  }

  *entries(): IterableIterator<[string, V]> {
    for (const bucket of this.#filled()) yield* bucket
  }

  *keys(): IterableIterator<string> {
    for (const bucket of this.#filled()) yield* bucket.keys()
  }

  *values(): IterableIterator<V> {
    for (const bucket of this.#filled()) yield* bucket.values()
  }

  [Symbol.iterator](): IterableIterator<[string, V]> {
    return this.entries()
  }

  /**
   * The map with every value replaced by `fn(value)`. Results for unchanged values come from `memo`,
   * so they keep their references and cost nothing.
   */
  derive<W>(memo: Derivation<V, W>, fn: (value: V, key: string) => W): PersistentMap<W> {
    const { last } = memo
    if (last?.from === this) return last.to
    const branches = this.#branches.map((branch, at): Branch<W> => {
      const [from, to] = last ? [last.from.#branches[at], last.to.#branches[at]] : []
      if (to && branch === from) return to
      return branch.map((bucket, index) => {
        const [before, derived] = [from?.[index], to?.[index]]
        if (derived && bucket === before) return derived
        if (bucket.size === 0) return emptyBucket
        return new Map(
          Array.from(bucket, ([key, value]) => {
            const known = before?.get(key) === value ? derived?.get(key) : undefined
            return [key, known ?? fn(value, key)]
          }),
        )
      })
    })
    const to = new PersistentMap<W>(branches, this.size)
    memo.last = { from: this, to }
    return to
  }

  /** What has changed since `previous`, compared by reference. Shared buckets cost nothing. */
  since(previous: PersistentMap<V> | undefined): MapChanges<V> {
    const added: [string, V][] = []
    const changed: [string, V, V][] = []
    const removed: [string, V][] = []
    this.#differing(previous, (now, before) => {
      now.forEach((value, key) => {
        const old = before.get(key)
        if (old === undefined) added.push([key, value])
        else if (old !== value) changed.push([key, value, old])
      })
      before.forEach((old, key) => {
        if (!now.has(key)) removed.push([key, old])
      })
    })
    return { added, changed, removed }
  }

  #bucket(index: number): Bucket<V> {
    return this.#branches[Math.floor(index / branchSize)]?.[index % branchSize] ?? emptyBucket
  }

  *#filled(): IterableIterator<Bucket<V>> {
    for (const branch of this.#branches) {
      if (branch === emptyBranch) continue
      for (const bucket of branch) if (bucket.size > 0) yield bucket
    }
  }

  /** Visits buckets that differ. Iterators would make half as much garbage again. */
  #differing(
    previous: PersistentMap<V> | undefined,
    visit: (now: Bucket<V>, before: Bucket<V>) => void,
  ): void {
    this.#branches.forEach((branch, at) => {
      const before = (previous ? previous.#branches[at] : undefined) ?? emptyBranch
      if (branch === before) return
      branch.forEach((bucket, index) => {
        const old = before[index] ?? emptyBucket
        if (bucket !== old) visit(bucket, old)
      })
    })
  }
}

function bucketOf(key: string): number {
  const hash = hashOf(key)
  return (hash ^ (hash >>> 16)) & (bucketCount - 1)
}

/** A number for a text (FNV-1a), the same in every run. */
export function hashOf(text: string): number {
  let hash = 0x811c9dc5
  for (let index = 0; index < text.length; index++) {
    hash = Math.imul(hash ^ text.charCodeAt(index), 0x01000193)
  }
  return hash >>> 0
}
