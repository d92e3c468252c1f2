import { addressBytes, protocolNumbers } from '../../kernel/addresses.js'
import { addressKey, type FlowMessage } from '../../kernel/flow-message.js'
import type { Protocol } from '../../state/names.js'
import type { IpFamily } from '../../state/ip.js'
import type { ServedChanges, ServedPort } from './messages.js'

/** Finds the service port that a connection was made to. */
export class ServiceTable<Counted> {
  readonly #create: (port: ServedPort) => Counted
  readonly #ports = new Map<string, Claim<Counted>>()
  readonly #byAddress: Places<Counted> = new Map()
  readonly #byNodePort: Places<Counted> = new Map()
  readonly #local = { IPv4: new Set<Key>(), IPv6: new Set<Key>() }

  constructor(create: (port: ServedPort) => Counted) {
    this.#create = create
  }

  /**
   * Returns the ports that are no longer served. Their connections are still found unless other
   * ports have, or take, their addresses.
   */
  change({ set, removed, localAddresses }: ServedChanges): readonly Counted[] {
    const gone: Counted[] = []
    for (const id of removed) {
      const known = this.#ports.get(id)
      this.#ports.delete(id)
      if (!known) continue
      gone.push(known.counted)
      this.#claim(known)
    }
    for (const port of set) this.#set(port)
    for (const [family, addresses] of localAddresses) {
      this.#local[family] = new Set(addresses.flatMap((ip) => keyOf(family, ip)))
    }
    return gone
  }

  find(flow: Destination): Counted | undefined {
    const { family, destinationKey, destinationPort } = flow
    const place = placeOf(flow.protocol, destinationPort)
    const found = this.#byAddress.get(destinationKey)?.get(place)?.[0]
    if (found) return found.counted
    const nodePort = this.#byNodePort.get(family)?.get(place)?.[0]
    return nodePort && this.#local[family].has(destinationKey) ? nodePort.counted : undefined
  }

  /** Forgets the addresses of ports that are gone. All are found in one walk: thousands may go. */
  drop(gone: ReadonlySet<Counted>): void {
    if (gone.size === 0) return
    for (const places of [this.#byAddress, this.#byNodePort]) {
      for (const [key, ports] of places) {
        for (const [place, claims] of ports) {
          const others = claims.filter(({ counted }) => !gone.has(counted))
          if (others.length === 0) ports.delete(place)
          else if (others.length < claims.length) ports.set(place, others)
        }
        if (ports.size === 0) places.delete(key)
      }
    }
  }

  #set(port: ServedPort): void {
    const before = this.#ports.get(port.id)
    const claim = { port, counted: before?.counted ?? this.#create(port) }
    this.#ports.set(port.id, claim)
    if (before) this.#claim(before)
    this.#claim(claim)
  }

  /**
   * Makes a claim count at its places, or no longer if its port has another one or is gone. Of
   * several claims to a place the smallest counts, as in the kernel. The last one stays until
   * another comes.
   */
  #claim(claim: Claim<Counted>): void {
    const { family, addresses, port, nodePort, ...named } = claim.port
    const protocol = protocolNumbers[named.protocol satisfies Protocol]
    const isCurrent = (each: Claim<Counted>) => this.#ports.get(each.port.id) === each
    const put = (places: Places<Counted>, key: Key, place: number) => {
      const ports = places.get(key) ?? new Map<number, readonly Claim<Counted>[]>()
      places.set(key, ports)
      const others = (ports.get(place) ?? []).filter((each) => each !== claim && isCurrent(each))
      if (isCurrent(claim)) others.push(claim)
      if (others.length > 0) ports.set(place, others.sort(byId))
    }
    for (const ip of addresses) {
      for (const key of keyOf(family, ip)) put(this.#byAddress, key, placeOf(protocol, port))
    }
    if (nodePort !== 0) put(this.#byNodePort, family, placeOf(protocol, nodePort))
  }
}

type Destination = Pick<FlowMessage, 'family' | 'protocol' | 'destinationKey' | 'destinationPort'>
type Key = string | number

interface Claim<Counted> {
  readonly port: ServedPort
  readonly counted: Counted
}

type Places<Counted> = Map<Key, Map<number, readonly Claim<Counted>[]>>

const byId = (a: Claim<unknown>, b: Claim<unknown>) => (a.port.id < b.port.id ? -1 : 1)

const placeOf = (protocol: number, port: number) => port * 256 + protocol

function keyOf(family: IpFamily, ip: string): readonly Key[] {
  const bytes = addressBytes(ip)
  return bytes ? [addressKey(family, Buffer.from(bytes), 0)] : []
}
