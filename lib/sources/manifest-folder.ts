import { readFile, stat } from 'node:fs/promises'
import { Slice } from '../async.js'
import { messageOf } from '../errors.js'
import { followPath, scan, type Snapshot } from '../kernel/follow-path.js'
import {
  objectsOfPart,
  parseManifest,
  type ManifestFile,
  type ManifestObject,
} from './manifest-file.js'
import { parseInThread } from './manifest-thread.js'
import { mirrorEndpoints } from './mirrored-endpoints.js'
import type { ObjectKind, ObjectSink, Source } from './source.js'

interface ManifestFolderOptions {
  /** A file, or a folder with YAML and JSON files, also in subfolders. */
  readonly path: string
  readonly settleMs?: number
  readonly pollMs?: number
}

interface KnownFile {
  readonly mark: string
  /** Whether the content of this mark can be used. */
  readonly isGood: boolean
  /** The last good content. */
  readonly objects: readonly ManifestObject[]
}

/** YAML of this many characters takes some 20 ms, which is what a thread costs. */
const largeText = 32 * 1024

const kinds: readonly ObjectKind[] = ['Node', 'ServiceCIDR', 'Service', 'EndpointSlice']

/** Follows objects in files instead of an API server. */
export class ManifestFolder implements Source {
  readonly #options: ManifestFolderOptions
  readonly #files = new Map<string, KnownFile>()
  /** The objects that the sink has, by kind/namespace/name; the text is for comparison. */
  readonly #delivered = new Map<string, { object: ManifestObject<ObjectKind>; text: string }>()
  #isSynced = false

  constructor(options: ManifestFolderOptions) {
    this.#options = options
  }

  async run(sink: ObjectSink, signal: AbortSignal): Promise<void> {
    const { path, ...pace } = this.#options
    await followPath(
      path,
      {
        matches: isManifest,
        changed: (files) => this.#update(files, sink, signal),
        failed: (error) => {
          // A file that is read at the end is left unread.
          if (!signal.aborted) sink.failed(unreadable(path, error))
        },
        ...pace,
      },
      signal,
    )
  }

  /** Reads everything once, for `render`. */
  async load(sink: ObjectSink): Promise<void> {
    const { path } = this.#options
    try {
      const found = await scan(path, isManifest)
      await this.#update(found.files, sink)
    } catch (error) {
      sink.failed(unreadable(path, error))
    }
  }

  /** Uses all that can be read. Then it throws if a file could not. */
  async #update(files: Snapshot, sink: ObjectSink, signal?: AbortSignal): Promise<void> {
    // A missing folder is a failure, not an empty cluster (R01).
    if (files.size === 0 && !(await exists(this.#options.path))) {
      const whenMissing = signal ? '; waiting for it' : ''
      sink.failed(`${this.#options.path}: no such file or folder${whenMissing}`)
      return
    }
    let good = 0
    const unread: string[] = []
    for (const [file, mark] of files) {
      let known = this.#files.get(file)
      if (known?.mark !== mark) {
        known = await this.#read(file, mark, sink, signal).catch((error: unknown) => {
          unread.push(messageOf(error))
          return undefined
        })
      }
      if (known?.isGood === true) good++
    }
    for (const file of this.#files.keys()) if (!files.has(file)) this.#files.delete(file)
    if (this.#isSynced || files.size === 0 || good > 0) await this.#deliver(sink)
    if (unread.length > 0) throw new Error(unread.join('; '))
  }

  /** If the file cannot be used, its last good content stays. Throws if it cannot be read. */
  async #read(
    file: string,
    mark: string,
    sink: ObjectSink,
    signal: AbortSignal | undefined,
  ): Promise<KnownFile> {
    const { objects, problems } = await this.#parse(await readFile(file, 'utf8'), file, signal)
    for (const problem of problems) sink.failed(problem)
    const isGood = problems.length === 0
    const known = {
      ...{ mark, isGood },
      objects: isGood ? objects : (this.#files.get(file)?.objects ?? []),
    }
    this.#files.set(file, known)
    return known
  }

  async #parse(text: string, file: string, signal?: AbortSignal): Promise<ManifestFile> {
    return signal && text.length > largeText
      ? parseInThread({ text, file }, signal)
      : parseManifest(text, file)
  }

  /** Not all at once: thousands of objects would hold the health checks. */
  async #deliver(sink: ObjectSink): Promise<void> {
    const slice = new Slice()
    let count = 0
    const wanted = new Map<string, ManifestObject<ObjectKind>>()
    const all = [...this.#files].sort(([left], [right]) => (left < right ? -1 : 1))
    for (const object of mirrorEndpoints(all.flatMap(([, { objects }]) => objects))) {
      const id = `${object.kind}/${object.namespace}/${object.name}`
      const twin = wanted.get(id)
      if (twin)
        sink.failed(`${object.place}: ${id} is also in ${twin.place}; the later one is used`)
      wanted.set(id, object)
    }
    for (const [id, { object }] of this.#delivered) {
      if (wanted.has(id)) continue
      this.#delivered.delete(id)
      sink.remove(object.kind, object.namespace, object.name)
    }
    for (const [id, object] of wanted) {
      const delivered = this.#delivered.get(id)
      // An object of an unchanged file is the same. An object of a changed file may be equal.
      if (delivered?.object.raw === object.raw) continue
      if (++count % objectsOfPart === 0) await slice.rest()
      const text = JSON.stringify(object.raw)
      if (delivered?.text === text) continue
      this.#delivered.set(id, { object, text })
      sink.upsert(object.kind, object.raw)
    }
    if (this.#isSynced) return
    this.#isSynced = true
    for (const kind of kinds) sink.synced(kind)
  }
}

function unreadable(path: string, error: unknown): string {
  return `${path}: cannot be read: ${messageOf(error)}`
}

function exists(path: string): Promise<boolean> {
  return stat(path).then(
    () => true,
    () => false,
  )
}

function isManifest(name: string): boolean {
  return /\.(ya?ml|json)$/i.test(name)
}
