import { AddressClaims } from './address-claims.js'
import { isEqual } from './json.js'
import type { EndpointSliceObject, ServiceObject, ServicePortObject } from './objects.js'
import type { IpFamily } from './ip.js'

export interface Dirty {
  /** Ids (`namespace/name`) of the Services to build again. */
  readonly dirty: ReadonlySet<string>
  readonly pending: { readonly services: number; readonly endpoints: number }
  readonly triggerTimes: ReadonlyMap<IpFamily, readonly number[]>
}

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
  #dirty = new Set<string>()
  #servicesPending = 0
  #endpointsPending = 0
  #triggerTimes = new Map<IpFamily, number[]>()

  service(id: string): ServiceObject | undefined {
    return this.#entries.get(id)?.service
  }

  /** The id of another Service that has this address as ClusterIP, with this port and protocol. */
  ownerOf(
    ip: string,
    { port, protocol }: Pick<ServicePortObject, 'port' | 'protocol'>,
    asker: string,
  ): string | undefined {
    const hasPort = (owner: string) =>
      this.service(owner)?.ports.some((own) => own.port === port && own.protocol === protocol)
    return this.#claims.owners(ip).find((owner) => owner !== asker && hasPort(owner))
  }

  slices(id: string): readonly EndpointSliceObject[] {
    return [...(this.#entries.get(id)?.slices.values() ?? [])]
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
    // The old slice stays, with the trigger time that was counted: a new time that comes in an
    // update of its own counts with the change of endpoints that follows it.
    if (old && isEqual({ ...old, triggerTime: 0 }, { ...slice, triggerTime: 0 })) return
    entry.slices.set(sliceId, slice)
    this.#serviceOfSlice.set(sliceId, id)
    this.#touch(id, 'endpoints')
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

  markAll(): void {
    for (const id of this.#entries.keys()) this.#dirty.add(id)
  }

  takeDirty(): Dirty {
    const taken = {
      dirty: this.#dirty,
      pending: { services: this.#servicesPending, endpoints: this.#endpointsPending },
      triggerTimes: this.#triggerTimes,
    }
    this.#dirty = new Set()
    this.#servicesPending = 0
    this.#endpointsPending = 0
    this.#triggerTimes = new Map()
    return taken
  }

  #replaceService(id: string, entry: Entry, service: ServiceObject | undefined): void {
    for (const other of this.#claims.replace(id, entry.service, service)) this.#dirty.add(other)
    entry.service = service
    this.#touch(id, 'service')
  }

  #detach(id: string, sliceId: string): void {
    this.#entries.get(id)?.slices.delete(sliceId)
    this.#serviceOfSlice.delete(sliceId)
    this.#touch(id, 'endpoints')
  }

  #touch(id: string, kind: 'service' | 'endpoints'): void {
    this.#dirty.add(id)
    if (kind === 'service') this.#servicesPending++
    else this.#endpointsPending++
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
