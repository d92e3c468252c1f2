import { addressText } from '../../kernel/addresses.js'
import { addressKey } from '../../kernel/flow-message.js'
import { hostPort, type IpFamily } from '../../state/ip.js'
import { openPacketLog, type PacketLog } from '../../kernel/packet-log.js'

/** The first packet of a connection that a rule has refused. */
export interface Refusal {
  readonly family: IpFamily
  readonly protocol: number
  readonly destinationKey: string | number
  readonly destinationPort: number
  /** `ip:port` */
  readonly client: string
  readonly destination: string
}

/** Hears what rules refuse. Another program, or the process before this one, may have the group. */
export class Refusals {
  readonly #group: number
  #log: PacketLog | undefined

  constructor(group: number) {
    this.#group = group
  }

  /** Begins to listen, once. Throws while somebody else listens. */
  open(): void {
    this.#log ??= openPacketLog(this.#group)
  }

  /** What has come. `overruns`: how often there was more than room. */
  read(refused: (refusal: Refusal) => void): { readonly overruns: number } {
    if (!this.#log) return { overruns: 0 }
    for (const { bytes } of this.#log.read()) {
      const refusal = refusalIn(bytes)
      if (refusal) refused(refusal)
    }
    return { overruns: this.#log.takeOverruns() }
  }

  close(): void {
    this.#log?.close()
    this.#log = undefined
  }
}

/** Where addresses stand in the header of IP, and how long that is. */
const places = {
  IPv4: { protocol: 9, source: 12, destination: 16 },
  IPv6: { protocol: 6, source: 8, destination: 24 },
} as const

/** From the IP header on. Undefined for what is cut too short to have ports. */
function refusalIn(bytes: Buffer): Refusal | undefined {
  const first = bytes[0] ?? 0
  const family = first >> 4 === 4 ? 'IPv4' : first >> 4 === 6 ? 'IPv6' : undefined
  if (!family) return undefined
  const head = family === 'IPv4' ? (first & 15) * 4 : ipv6HeaderBytes
  if (bytes.length < head + 4) return undefined
  const { protocol, source, destination } = places[family]
  const place = (at: number, port: number) =>
    hostPort(addressText(family, bytes, at), bytes.readUInt16BE(head + port))
  return {
    family,
    protocol: bytes[protocol] ?? 0,
    destinationKey: addressKey(family, bytes, destination),
    destinationPort: bytes.readUInt16BE(head + 2),
    client: place(source, 0),
    destination: place(destination, 2),
  }
}

const ipv6HeaderBytes = 40
