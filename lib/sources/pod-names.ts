import { parseIp } from '../state/ip.js'
import { asArray, asObject, asString, strings } from '../state/json.js'
import { printable } from '../state/names.js'
import type { ObjectKind, ObjectWatcher } from './source.js'

/** The name that a slice gives to an address. */
interface Named {
  readonly namespace: string
  readonly pod: string
  /** What other slices said before and later, such as that of a second Service. */
  older: Named | undefined
  newer: Named | undefined
}

/**
 * Names of pods by address, from EndpointSlices. The proxy itself does not need them, so this class
 * reads them from objects on their way, and only if there is a page or connections are shown.
 */
export class PodNames implements ObjectWatcher {
  /** By `namespace/name` of the Service, then of the slice, then by address. */
  readonly #services = new Map<string, Map<string, ReadonlyMap<string, Named>>>()
  /** The Service of each slice, kept because the label may change. */
  readonly #owners = new Map<string, string>()
  /** What was said last. */
  readonly #byAddress = new Map<string, Named>()

  /** Names of the pods behind a Service, by address. */
  of(service: string): ReadonlyMap<string, string> {
    const slices = this.#services.get(service)?.values() ?? []
    return new Map([...slices].flatMap((names) => [...names].map(([ip, { pod }]) => [ip, pod])))
  }

  /** `namespace/name` of the pod with this address; empty where no slice has it. */
  at(ip: string): string {
    const named = this.#byAddress.get(ip)
    return named ? `${named.namespace}/${named.pod}` : ''
  }

  upsert(kind: ObjectKind, raw: unknown): void {
    if (kind !== 'EndpointSlice') return
    const object = asObject(raw)
    const metadata = asObject(object?.['metadata'])
    const namespace = asString(metadata?.['namespace'] ?? 'default')
    const name = asString(metadata?.['name'])
    const service = asString(asObject(metadata?.['labels'])?.['kubernetes.io/service-name'])
    if (namespace === undefined || name === undefined) return
    const slice = `${namespace}/${name}`
    this.#forget(slice)
    if (service === undefined) return
    const names = new Map<string, Named>()
    for (const [ip, pod] of namesIn(object?.['endpoints'])) {
      const older = this.#byAddress.get(ip)
      const named = { namespace, pod, older, newer: undefined }
      if (older) older.newer = named
      this.#byAddress.set(ip, named)
      names.set(ip, named)
    }
    if (names.size === 0) return
    const owner = `${namespace}/${service}`
    const slices = this.#services.get(owner) ?? new Map<string, ReadonlyMap<string, Named>>()
    this.#services.set(owner, slices.set(slice, names))
    this.#owners.set(slice, owner)
  }

  remove(kind: ObjectKind, namespace: string, name: string): void {
    if (kind === 'EndpointSlice') this.#forget(`${namespace}/${name}`)
  }

  #forget(slice: string): void {
    const owner = this.#owners.get(slice)
    if (owner === undefined) return
    this.#owners.delete(slice)
    const slices = this.#services.get(owner)
    for (const [ip, { older, newer }] of slices?.get(slice) ?? []) {
      if (older) older.newer = newer
      if (newer) newer.older = older
      else if (older) this.#byAddress.set(ip, older)
      else this.#byAddress.delete(ip)
    }
    slices?.delete(slice)
    if (slices?.size === 0) this.#services.delete(owner)
  }
}

function namesIn(endpoints: unknown): ReadonlyMap<string, string> {
  const names = new Map<string, string>()
  for (const endpoint of asArray(endpoints) ?? []) {
    const target = asObject(asObject(endpoint)?.['targetRef'])
    const name = asString(target?.['name']) ?? ''
    if (target?.['kind'] !== 'Pod' || name === '') continue
    for (const address of strings(asObject(endpoint)?.['addresses'])) {
      const ip = parseIp(address)
      // The API takes any text as a name here, and one could turn the text around it.
      if (ip) names.set(ip.text, printable(name))
    }
  }
  return names
}
