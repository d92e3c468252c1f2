import {
  cidrContains,
  formatIp,
  bitsOf,
  parseCidr,
  parseIp,
  type Cidr,
  type IpFamily,
  type PortRange,
} from '../../../state/ip.js'
import { listAt, numberAt, textsAt } from '../json.js'
import type { KubeObject } from '../object.js'
import { keyOf, type VersionedStore } from '../store.js'

/** Called when a value cannot be given out; the text says why. */
export type Refuse = (why: string) => never

/**
 * Which cluster IPs and node ports are taken, by which Service. It follows the store, so that
 * failed writes and dry runs never leave anything allocated.
 */
export class ServiceAllocations {
  readonly #store: VersionedStore
  readonly #ports: PortRange
  readonly #firstCidrs: readonly string[]
  readonly #ipOwners = new Map<string, string>()
  readonly #portOwners = new Map<number, string>()
  /** Where the search goes on: addresses are given out in order and reused late. */
  readonly #cursors = new Map<string, bigint>()
  #nextPort: number

  constructor(
    store: VersionedStore,
    ranges: { readonly cidrs: readonly string[]; readonly ports: PortRange },
  ) {
    this.#store = store
    this.#firstCidrs = ranges.cidrs
    this.#ports = ranges.ports
    this.#nextPort = ranges.ports.from
    store.subscribe('services', ({ type, object, previous }) => {
      for (const ip of previous ? ipsOf(previous) : []) this.#ipOwners.delete(ip)
      for (const port of previous ? portsOf(previous) : []) this.#portOwners.delete(port)
      if (type === 'DELETED') return
      for (const ip of ipsOf(object)) this.#ipOwners.set(ip, keyOf(object))
      for (const port of portsOf(object)) this.#portOwners.set(port, keyOf(object))
    })
  }

  /** The families this cluster gives out addresses of, the primary one first. */
  families(): readonly IpFamily[] {
    return [...new Set(this.#cidrs().map((cidr) => cidr.family))]
  }

  freeIp(family: IpFamily, refuse: Refuse): string {
    for (const cidr of this.#cidrs()) {
      if (cidr.family !== family) continue
      const ip = this.#freeIn(cidr)
      if (ip !== undefined) return ip
    }
    return refuse(`failed to allocate a serviceIP: no free ${family} address is left`)
  }

  /** Refuses unless the address belongs to the cluster and no other Service has it. */
  checkIp(ip: string, service: KubeObject, refuse: Refuse): void {
    const failed = `failed to allocate IP ${ip}`
    const parsed = parseIp(ip)
    const cidrs = this.#cidrs()
    if (parsed === undefined || !cidrs.some((cidr) => cidrContains(cidr, parsed))) {
      const ranges = cidrs.map((cidr) => cidr.text).join(', ')
      refuse(`${failed}: the provided IP is not in the valid range of a ServiceCIDR (${ranges})`)
    }
    const owner = this.#ipOwners.get(parsed.text)
    if (owner !== undefined && owner !== keyOf(service)) {
      refuse(`${failed}: provided IP is already allocated`)
    }
  }

  freePort(reserved: ReadonlySet<number>, refuse: Refuse): number {
    const { from, to } = this.#ports
    for (let tried = from; tried <= to; tried++) {
      const port = this.#nextPort
      this.#nextPort = port >= to ? from : port + 1
      if (!this.#portOwners.has(port) && !reserved.has(port)) return port
    }
    return refuse('failed to allocate a nodePort: range is full')
  }

  checkPort(port: number, service: KubeObject, refuse: Refuse): void {
    const { from, to } = this.#ports
    if (port < from || port > to) {
      refuse(`provided port is not in the valid range. The range of valid ports is ${from}-${to}`)
    }
    const owner = this.#portOwners.get(port)
    if (owner !== undefined && owner !== keyOf(service))
      refuse('provided port is already allocated')
  }

  /** The configured ranges, and those of ServiceCIDR objects: adding one widens them at once. */
  #cidrs(): readonly Cidr[] {
    const added = this.#store
      .list('servicecidrs.networking.k8s.io')
      .flatMap((object) => textsAt(object, 'spec', 'cidrs'))
    return [...new Set([...this.#firstCidrs, ...added])]
      .map(parseCidr)
      .filter((cidr) => cidr !== undefined)
  }

  #freeIn(cidr: Cidr): string | undefined {
    const size = 1n << BigInt(bitsOf(cidr.family) - cidr.prefix)
    // The first is the network itself, the last of IPv4 its broadcast address.
    const last = cidr.family === 'IPv4' ? size - 2n : size - 1n
    // Users choose low addresses by hand (.1 the API, .10 DNS), so the search starts above them.
    const first = last > 64n ? 16n : 1n
    const start = this.#cursors.get(cidr.text) ?? first
    for (let step = 0n; step <= last - first; step++) {
      const offset = first + ((start - first + step) % (last - first + 1n))
      const ip = formatIp(cidr.family, cidr.network + offset)
      if (this.#ipOwners.has(ip)) continue
      this.#cursors.set(cidr.text, offset + 1n > last ? first : offset + 1n)
      return ip
    }
    return undefined
  }
}

function ipsOf(service: KubeObject): readonly string[] {
  return textsAt(service, 'spec', 'clusterIPs').flatMap((ip) => parseIp(ip)?.text ?? [])
}

function portsOf(service: KubeObject): readonly number[] {
  const ports = listAt(service, 'spec', 'ports').map((port) => numberAt(port, 'nodePort') ?? 0)
  return [...ports, numberAt(service, 'spec', 'healthCheckNodePort') ?? 0].filter(
    (port) => port > 0,
  )
}
