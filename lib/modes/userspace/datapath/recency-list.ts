/** An item of a {@link RecencyList}, which sets the fields. It can be in one list only. */
export interface Recent<T> {
  older: T | undefined
  newer: T | undefined
}

/** Items in order of last use, oldest first. Using one again costs a few assignments. */
export class RecencyList<T extends Recent<T>> {
  #size = 0
  #oldest: T | undefined
  #newest: T | undefined

  get size(): number {
    return this.#size
  }

  get oldest(): T | undefined {
    return this.#oldest
  }

  add(item: T): void {
    this.#append(item)
    this.#size++
  }

  use(item: T): void {
    if (item === this.#newest) return
    this.#unlink(item)
    this.#append(item)
  }

  remove(item: T): void {
    this.#unlink(item)
    this.#size--
  }

  #append(item: T): void {
    item.older = this.#newest
    item.newer = undefined
    if (this.#newest) this.#newest.newer = item
    else this.#oldest = item
    this.#newest = item
  }

  #unlink(item: T): void {
    if (item.older) item.older.newer = item.newer
    else this.#oldest = item.newer
    if (item.newer) item.newer.older = item.older
    else this.#newest = item.older
    item.older = item.newer = undefined
  }
}
