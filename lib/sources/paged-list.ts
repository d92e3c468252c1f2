import { SourceError } from '../errors.js'
import { asArray, asObject, asString } from '../state/json.js'
import { NotJson, readJson } from './answer-body.js'
import type { ObjectRequests } from './object-requests.js'
import { identityOf } from '../state/parse-object.js'
import { Refusal } from './watch-event.js'

/** A list of which some pages have come. */
interface Begun {
  readonly seen: Set<string>
  readonly next: string | undefined
}

/**
 * Lists all objects in pages. A page that does not come whole is asked for again, with half as many
 * objects: on a slow way, or one that is cut again and again, a page of usual size may never come.
 */
export class PagedList {
  readonly #path: string
  readonly #requests: Pick<ObjectRequests, 'list'>
  readonly #usualSize: number
  /** 0: all objects in one page. */
  #size: number
  #begun: Begun | undefined

  constructor(path: string, requests: Pick<ObjectRequests, 'list'>, pageSize: number) {
    this.#path = path
    this.#requests = requests
    this.#usualSize = pageSize
    this.#size = pageSize
  }

  /** The next list is one page, because one in pages took too long for the server. */
  inOnePage(): void {
    this.#size = 0
  }

  /** All objects have come in another way, so a list that has begun is old. */
  beginAnew(): void {
    this.#begun = undefined
  }

  /** Gives each object to `take`, which adds its key to those that were seen. */
  async read(
    signal: AbortSignal,
    take: (object: unknown, seen: Set<string>) => void,
  ): Promise<{ readonly seen: Set<string>; readonly version: string }> {
    const { seen, next: first } = this.#begun ?? { seen: new Set<string>(), next: undefined }
    let next = first
    for (;;) {
      const { items, version, following } = await this.#page(signal, { seen, next })
      for (const item of items) take(item, seen)
      if (following !== undefined && following === next) {
        throw new SourceError(`list ${this.#path}: the same page comes again and again`)
      }
      if (following === undefined) {
        this.#size = this.#usualSize
        return { seen, version }
      }
      next = following
    }
  }

  async #page(signal: AbortSignal, begun: Begun) {
    const { next } = begun
    let answer: unknown
    let isCut = false
    this.#begun = begun
    try {
      const { body, what } = await this.#requests.list(signal, {
        ...(this.#size > 0 ? { limit: String(this.#size) } : {}),
        ...(next === undefined ? {} : { continue: next }),
      })
      isCut = true
      answer = await readJson(body, what)
    } catch (error) {
      // Where the server has refused, or has sent something else, the list begins anew.
      if (error instanceof Refusal || error instanceof NotJson) this.#begun = undefined
      else if (isCut) this.#shrink()
      throw error
    }
    this.#begun = undefined
    const page = asObject(answer)
    const metadata = asObject(page?.['metadata'])
    const { items: listed } = page ?? {}
    // A list without objects may have null here, and what has nothing here is no list.
    const items = listed === null ? [] : asArray(listed)
    const version = asString(metadata?.['resourceVersion'])
    if (items === undefined || version === undefined) {
      throw new SourceError(`list ${this.#path}: the answer is not a list of objects`)
    }
    // One without a name is left out, as everywhere. If all lack it, these are no objects.
    if (items.length > 0 && items.every((item) => identityOf(item).name === '')) {
      throw new SourceError(`list ${this.#path}: no object has a name, so what was known stays`)
    }
    return { items, version, following: asString(metadata?.['continue']) || undefined }
  }

  /** A page of one object cannot be smaller, so after it the list begins anew. */
  #shrink(): void {
    if (this.#size === 1) this.#begun = undefined
    this.#size = this.#size > 1 ? Math.floor(this.#size / 2) : this.#usualSize
  }
}
