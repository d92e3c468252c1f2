import { addressBytes, protocolNumbers } from '../../kernel/addresses.js'
import { addressKey, type FlowMessage } from '../../kernel/flow-message.js'
import type { Protocol } from '../../state/names.js'
import type { IpFamily } from '../../state/ip.js'
import type { ServedChanges, ServedPort } from './messages.js'

/** Finds the service port that a connection was made to. */
export class ServiceTable<Counted> {
  readonly #create: (port: ServedPort) => Counted
  readonly #ports = new Map<string, { readonly port: ServedPort; readonly counted: Counted }>()
  readonly #byAddress: Places<Counted> = new Map()
  readonly #byNodePort: Places<Counted> = new Map()
  readonly #local = { IPv4: new Set<Key>(), IPv6: new Set<Key>() }

  constructor(create: (port: ServedPort) => Counted) {
    this.#create = create
  }

  /**
   * Returns the ports that are no longer served. Their connections are still found until other
   * ports take their addresses.
   */
  change({ set, removed, localAddresses }: ServedChanges): readonly Counted[] {
    const gone: Counted[] = []
    for (const id of removed) {
      const known = this.#ports.get(id)
      if (known) gone.push(known.counted)
      this.#ports.delete(id)
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
    const found = this.#byAddress.get(destinationKey)?.get(place)
    if (found) return found.counted
    const nodePort = this.#byNodePort.get(family)?.get(place)
    return nodePort && this.#local[family].has(destinationKey) ? nodePort.counted : undefined
  }

  /** Forgets the addresses of a port that is gone. */
  drop(counted: Counted): void {
    for (const places of [this.#byAddress, this.#byNodePort]) {
      for (const [key, ports] of places) {
        for (const [place, each] of ports) if (each.counted === counted) ports.delete(place)
        if (ports.size === 0) places.delete(key)
      }
    }
  }

  #set(port: ServedPort): void {
    const counted = this.#ports.get(port.id)?.counted ?? this.#create(port)
    const entry = { port, counted }
    this.#ports.set(port.id, entry)
    const protocol = protocolNumbers[port.protocol satisfies Protocol]
    for (const ip of port.addresses) {
      for (const key of keyOf(port.family, ip)) {
        add(this.#byAddress, key, placeOf(protocol, port.port), entry)
      }
    }
    if (port.nodePort === 0) return
    add(this.#byNodePort, port.family, placeOf(protocol, port.nodePort), entry)
  }
}

type Destination = Pick<FlowMessage, 'family' | 'protocol' | 'destinationKey' | 'destinationPort'>
type Key = string | number
type Places<Counted> = Map<Key, Map<number, { readonly counted: Counted }>>

const placeOf = (protocol: number, port: number) => port * 256 + protocol

function add<Entry>(
  places: Map<Key, Map<number, Entry>>,
  key: Key,
  place: number,
  entry: Entry,
): void {
  const ports = places.get(key) ?? new Map<number, Entry>()
  places.set(key, ports.set(place, entry))
}

function keyOf(family: IpFamily, ip: string): readonly Key[] {
  const bytes = addressBytes(ip)
  return bytes ? [addressKey(family, Buffer.from(bytes), 0)] : []
}
