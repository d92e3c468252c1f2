import type { DaemonLine } from './timeline.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { KubeObject } from '../apiserver/object.js'
import type { StoreEvent, VersionedStore } from '../apiserver/store.js'

/** What the daemon reads, and the label of objects that it leaves out. */
const kinds = [
  ['Service', 'services', 'service.kubernetes.io/service-proxy-name'],
  ['EndpointSlice', 'endpointslices.discovery.k8s.io', 'service.kubernetes.io/headless'],
] as const

/** The version of each object that is there, by kind and name. */
type Versions = ReadonlyMap<string, number>

interface Wanted {
  readonly state: DesiredState
  readonly versions: Versions
  /** Objects that were deleted. */
  readonly gone: ReadonlySet<string>
}

/**
 * Finds the newest state of the API server's objects that the kernel has, from the daemon's log.
 * The log names every object that the daemon receives, then the beginning of a sync, which takes
 * all objects received so far, and then its end. So no clocks are compared, and no rule counts
 * before it is written.
 */
export class Programmed {
  readonly #store: VersionedStore
  #versions = new Map<string, number>()
  readonly #gone = new Set<string>()
  #received = new Map<string, number>()
  #taken: Versions = new Map()
  /** Undefined before the first sync of the daemon has ended. */
  #written: Versions | undefined
  /** States that may not be written yet, oldest first. */
  #waiting: Wanted[] = []
  #state: DesiredState | undefined
  #newest: Wanted | undefined

  constructor(store: VersionedStore) {
    this.#store = store
  }

  /** The newest state that the kernel has; undefined until the daemon has written one. */
  get state(): DesiredState | undefined {
    return this.#state
  }

  /** Follows the objects, until the returned functions are called. */
  follow(): readonly (() => void)[] {
    return kinds.map(([kind, collection, label]) => {
      for (const object of this.#store.list(collection)) this.#is(kind, object, label)
      return this.#store.subscribe(collection, (event) => this.#changed(kind, event, label))
    })
  }

  /** Notes the state that the objects make now. */
  want(state: DesiredState): void {
    this.#newest = { state, versions: new Map(this.#versions), gone: new Set(this.#gone) }
    this.#waiting.push(this.#newest)
    this.#look()
  }

  /** Reads a line of the daemon's log; returns whether the kernel may have something new. */
  daemonSaid({ message, family, kind, namespace, name, version }: DaemonLine): boolean {
    const key = `${kind} ${namespace}/${name}`
    switch (message) {
      case 'Starting':
        this.#received = new Map()
        this.#written = undefined
        this.#waiting = this.#newest ? [this.#newest] : []
        this.#state = undefined
        return true
      case 'object received':
        this.#received.set(key, version)
        return false
      case 'object removed':
        this.#received.delete(key)
        return false
      case 'sync begins':
        this.#taken = new Map(this.#received)
        return false
      case 'sync measured':
        if (family !== 'IPv4') return false
        this.#written = this.#taken
        return this.#look()
      default:
        return false
    }
  }

  #look(): boolean {
    const index = this.#waiting.findLastIndex((wanted) => isIn(this.#written, wanted))
    const found = this.#waiting[index]
    if (!found) return false
    this.#waiting.splice(0, index + 1)
    this.#state = found.state
    return true
  }

  #changed(kind: string, { type, object }: StoreEvent, label: string): void {
    if (type !== 'DELETED') this.#is(kind, object, label)
    else {
      this.#versions.delete(keyOf(kind, object))
      this.#gone.add(keyOf(kind, object))
    }
  }

  #is(kind: string, object: KubeObject, label: string): void {
    // The daemon does not receive objects with this label.
    if (object.metadata.labels?.[label] !== undefined) return
    this.#versions.set(keyOf(kind, object), Number(object.metadata.resourceVersion))
    this.#gone.delete(keyOf(kind, object))
  }
}

function isIn(written: Versions | undefined, { versions, gone }: Wanted): boolean {
  if (!written) return false
  for (const key of gone) if (written.has(key)) return false
  for (const [key, version] of versions) {
    if ((written.get(key) ?? -1) < version) return false
  }
  return true
}

function keyOf(kind: string, { metadata }: KubeObject): string {
  return `${kind} ${metadata.namespace ?? ''}/${metadata.name}`
}
