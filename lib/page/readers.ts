import { PersistentMap } from '../state/persistent-map.js'
import type { FlowView, ServiceLine, View } from './view.js'

/** The view as sources make it. Unchanged lines and parts keep their reference where that is cheap. */
export type PageView = Omit<View, 'services' | 'flows'> & {
  readonly services: PersistentMap<ServiceLine>
  readonly flows: PersistentMap<FlowView>
}

/** For a source without a stream. */
export const noFlows = PersistentMap.empty<FlowView>()

export interface ViewSource {
  view(): PageView
  /** Calls back after every change until the returned function is called. */
  subscribe(listener: () => void): () => void
  /** Resolves when there is time for a view; absent if there always is. */
  idle?(): Promise<void>
  /** A view could not be made, so the readers were dropped. */
  failed?(error: unknown): void
}

/** The part of a connection that is needed here. */
export interface ReaderConnection {
  /** False when the reader has not yet taken all that was written. */
  write(frame: Buffer): boolean
  once(event: 'drain' | 'close', listener: () => void): unknown
  destroy(): void
}

interface ReadersOptions {
  readonly source: ViewSource
  /** The least time between two views. */
  readonly frameMs: number
  /** A reader that does not take a frame for so long is dropped. */
  readonly stalledMs: number
}

interface Reader {
  readonly connection: ReaderConnection
  /** The view that was sent last. */
  has: PageView | undefined
  /** Runs while the reader has not taken its last frame. */
  stalled: NodeJS.Timeout | undefined
}

/**
 * Sends views to all readers. A view is made once for all of them, and only while there are some.
 * Each gets what differs from its last view, so a slow reader skips views, and never more than one
 * frame waits for it.
 */
export class Readers {
  readonly #options: ReadersOptions
  readonly #readers = new Set<Reader>()
  /** Frames by the view that a reader has. A frame turns that view into the newest one. */
  readonly #frames = new Map<PageView | undefined, Buffer | undefined>()
  #view: PageView | undefined
  #unsubscribe: (() => void) | undefined
  #timer: NodeJS.Timeout | undefined

  constructor(options: ReadersOptions) {
    this.#options = options
  }

  get size(): number {
    return this.#readers.size
  }

  add(connection: ReaderConnection): void {
    const reader: Reader = { connection, has: undefined, stalled: undefined }
    this.#readers.add(reader)
    connection.once('close', () => this.#remove(reader))
    this.#unsubscribe ??= this.#options.source.subscribe(() => this.#later(this.#options.frameMs))
    if (this.#view) this.#send(reader)
    else this.#later(0)
  }

  #remove(reader: Reader): void {
    clearTimeout(reader.stalled)
    this.#readers.delete(reader)
    if (this.#readers.size > 0) return
    this.#unsubscribe?.()
    this.#unsubscribe = undefined
    clearTimeout(this.#timer)
    this.#timer = undefined
    this.#view = undefined
    this.#frames.clear()
  }

  #later(ms: number): void {
    this.#timer ??= setTimeout(() => void this.#publish(), ms)
  }

  async #publish(): Promise<void> {
    const { source } = this.#options
    try {
      await source.idle?.()
      if (this.#readers.size === 0) return
      this.#view = source.view()
      this.#frames.clear()
      for (const reader of this.#readers) this.#send(reader)
    } catch (error) {
      source.failed?.(error)
      for (const { connection } of this.#readers) connection.destroy()
    } finally {
      this.#timer = undefined
    }
  }

  #send(reader: Reader): void {
    if (reader.stalled || !this.#view) return
    const frame = this.#frameFrom(reader.has)
    reader.has = this.#view
    if (!frame || reader.connection.write(frame)) return
    reader.stalled = setTimeout(() => reader.connection.destroy(), this.#options.stalledMs)
    reader.connection.once('drain', () => {
      clearTimeout(reader.stalled)
      reader.stalled = undefined
      this.#send(reader)
    })
  }

  /** Readers with the same view are sent the same bytes. */
  #frameFrom(before: PageView | undefined): Buffer | undefined {
    if (!this.#view) return undefined
    if (!this.#frames.has(before)) {
      const text = frameText(this.#view, before)
      this.#frames.set(before, text === '' ? undefined : Buffer.from(`data: ${text}\n\n`))
    }
    return this.#frames.get(before)
  }
}

/** A `Frame` as JSON; empty when nothing differs. */
function frameText(view: PageView, before: PageView | undefined): string {
  const known = new Map<string, unknown>(Object.entries(before ?? {}))
  const parts = Object.entries(view).flatMap(([key, value]: [string, unknown]) => {
    const old = known.get(key)
    if (value === old) return []
    const text =
      value instanceof PersistentMap
        ? changesText(value, old instanceof PersistentMap ? old : undefined)
        : JSON.stringify(value)
    const isSame = known.has(key) && (text === '' || text === JSON.stringify(old))
    return isSame ? [] : [`${JSON.stringify(key)}:${text}`]
  })
  return parts.length === 0 ? '' : `{${parts.join(',')}}`
}

/** `Changes` as JSON; empty when both have the same. */
function changesText(map: PersistentMap<unknown>, before: PersistentMap<unknown> | undefined) {
  const { added, changed, removed } = map.since(before)
  if (before && added.length + changed.length + removed.length === 0) return ''
  const set = [...added, ...changed].map(([, line]) => line)
  return JSON.stringify({ set, gone: removed.map(([key]) => key) })
}
