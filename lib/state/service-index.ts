import { AddressClaims } from './address-claims.js'
import { isEqual } from './json.js'
import type { EndpointSliceObject, Identity, ServiceObject } from './objects.js'
import type { PortNumber } from './service-ports.js'
import type { IpFamily } from './ip.js'

interface Dirty {
  /** Ids (`namespace/name`) of the Services to build again. */
  readonly dirty: ReadonlySet<string>
  readonly triggerTimes: ReadonlyMap<IpFamily, readonly number[]>
}

/**
 * Is told of each change that counts, and of how many objects of the kind wait with theirs for the
 * next sync.
 */
export type ChangeListener = (kind: 'service' | 'endpoints', waiting: number) => void

interface Entry {
  service: ServiceObject | undefined
  readonly slices: Map<string, EndpointSliceObject>
  /** Keys of the service ports that were built last, by family. */
  readonly keys: Map<IpFamily, ReadonlySet<string>>
}

const noKeys: ReadonlySet<string> = new Set()

/** Services with their slices, and which of them have changed since the last sync. */
export class ServiceIndex {
  readonly #entries = new Map<string, Entry>()
  /** By id of the slice: id of the Service that it belongs to. */
  readonly #serviceOfSlice = new Map<string, string>()
  readonly #claims = new AddressClaims()
  readonly #followsEndpoints: boolean
  readonly #noticed: ChangeListener | undefined
  #dirty = new Set<string>()
  /** Ids of the objects that have changed. */
  readonly #waiting = { service: new Set<string>(), endpoints: new Set<string>() }
  #triggerTimes = new Map<IpFamily, number[]>()

  /** `followsEndpoints`: a Service depends on which Services have its endpoints as ClusterIP. */
  constructor(options: {
    readonly followsEndpoints: boolean
    readonly noticed?: ChangeListener | undefined
  }) {
    this.#followsEndpoints = options.followsEndpoints
    this.#noticed = options.noticed
  }

  service(id: string): ServiceObject | undefined {
    return this.#entries.get(id)?.service
  }

  /** The ids of Services that have this address as ClusterIP, with this port and protocol. */
  ownersOf(ip: string, { port, protocol }: PortNumber): readonly string[] {
    const hasPort = (owner: string) =>
      this.service(owner)?.ports.some((own) => own.port === port && own.protocol === protocol)
    const owners = this.#claims.owners(ip)
    return owners.length === 0 ? owners : owners.filter(hasPort)
  }

  /** In the order of their names: which came first must not matter. */
  slices(id: string): readonly EndpointSliceObject[] {
    const slices = [...(this.#entries.get(id)?.slices.values() ?? [])]
    return slices.sort((a, b) => (a.name < b.name ? -1 : 1))
  }

  knownKeys(id: string, family: IpFamily): ReadonlySet<string> {
    return this.#entries.get(id)?.keys.get(family) ?? noKeys
  }

  setKnownKeys(id: string, family: IpFamily, keys: ReadonlySet<string>): void {
    if (keys.size > 0) this.#entry(id).keys.set(family, keys)
    else this.#entries.get(id)?.keys.delete(family)
    this.#dropIfEmpty(id)
  }

  setService(service: ServiceObject): void {
    const id = `${service.namespace}/${service.name}`
    const entry = this.#entry(id)
    if (isEqual(entry.service, service)) return
    this.#replaceService(id, entry, service)
  }

  removeService(namespace: string, name: string): void {
    const id = `${namespace}/${name}`
    const entry = this.#entries.get(id)
    if (entry?.service) this.#replaceService(id, entry, undefined)
  }

  setSlice(slice: EndpointSliceObject): void {
    const sliceId = `${slice.namespace}/${slice.name}`
    const id = `${slice.namespace}/${slice.service}`
    const before = this.#serviceOfSlice.get(sliceId)
    if (before !== undefined && before !== id) this.#detach(before, sliceId)
    const entry = this.#entry(id)
    const old = entry.slices.get(sliceId)
    // A slice that differs only in its trigger time is skipped. The old slice stays, so the new
    // time is counted with the change of endpoints that follows it.
    if (old && isEqual({ ...old, triggerTime: 0 }, { ...slice, triggerTime: 0 })) return
    entry.slices.set(sliceId, slice)
    this.#followEndpoints(sliceId, old, slice)
    this.#serviceOfSlice.set(sliceId, id)
    this.#touch(id, 'endpoints', sliceId)
    if (slice.triggerTime === undefined || slice.triggerTime === old?.triggerTime) return
    const times = this.#triggerTimes.get(slice.family) ?? []
    times.push(slice.triggerTime)
    this.#triggerTimes.set(slice.family, times)
  }

  removeSlice(namespace: string, name: string): void {
    const sliceId = `${namespace}/${name}`
    const id = this.#serviceOfSlice.get(sliceId)
    if (id !== undefined) this.#detach(id, sliceId)
  }

  /** Marks a Service to be built again, because something else than its objects has changed. */
  mark({ namespace, name }: Identity): void {
    this.#dirty.add(`${namespace}/${name}`)
  }

  markAll(): void {
    for (const id of this.#entries.keys()) this.#dirty.add(id)
  }

  takeDirty(): Dirty {
    const taken = { dirty: this.#dirty, triggerTimes: this.#triggerTimes }
    this.#dirty = new Set()
    this.#waiting.service.clear()
    this.#waiting.endpoints.clear()
    this.#triggerTimes = new Map()
    return taken
  }

  #replaceService(id: string, entry: Entry, service: ServiceObject | undefined): void {
    const { askers, slices } = this.#claims.replace(id, entry.service, service)
    for (const asker of askers) this.#dirty.add(asker)
    for (const slice of slices) {
      const other = this.#serviceOfSlice.get(slice)
      if (other !== undefined) this.#dirty.add(other)
    }
    entry.service = service
    this.#touch(id, 'service', id)
  }

  #detach(id: string, sliceId: string): void {
    const slices = this.#entries.get(id)?.slices
    this.#followEndpoints(sliceId, slices?.get(sliceId), undefined)
    slices?.delete(sliceId)
    this.#serviceOfSlice.delete(sliceId)
    this.#touch(id, 'endpoints', sliceId)
  }

  #followEndpoints(
    sliceId: string,
    before: EndpointSliceObject | undefined,
    after: EndpointSliceObject | undefined,
  ): void {
    if (this.#followsEndpoints) this.#claims.replaceEndpoints(sliceId, before, after)
  }

  #touch(id: string, kind: 'service' | 'endpoints', object: string): void {
    this.#dirty.add(id)
    const waiting = this.#waiting[kind].add(object)
    this.#noticed?.(kind, waiting.size)
  }

  #entry(id: string): Entry {
    let entry = this.#entries.get(id)
    if (!entry) {
      entry = { service: undefined, slices: new Map(), keys: new Map() }
      this.#entries.set(id, entry)
    }
    return entry
  }

  #dropIfEmpty(id: string): void {
    const entry = this.#entries.get(id)
    if (entry && !entry.service && entry.slices.size === 0 && entry.keys.size === 0) {
      this.#entries.delete(id)
    }
  }
}
