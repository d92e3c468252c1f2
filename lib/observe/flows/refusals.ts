import { KernelError } from '../../errors.js'
import { addressText, ipHeader, protocolNumbers } from '../../kernel/addresses.js'
import { addressKey } from '../../kernel/flow-message.js'
import { hostPort, type IpFamily } from '../../state/ip.js'
import { openPacketLog, type PacketLog } from '../../kernel/packet-log.js'
import { dropReasons } from '../../config/config.js'

/** The first packet of a connection that a rule has refused or dropped. */
export interface Refusal {
  /** When it was heard of, in ms since 1970. */
  readonly at: number
  /** Why a policy drops it; empty where the Service has no endpoints. */
  readonly reason: string
  readonly family: IpFamily
  readonly protocol: number
  readonly destinationKey: string | number
  readonly destinationPort: number
  /** `ip:port` */
  readonly client: string
  readonly destination: string
  /**
   * The TCP sequence number, which is the same when a packet is sent again; 0 for other protocols.
   */
  readonly sequence: number
}

interface RefusalsDeps {
  readonly open: (group: number) => PacketLog
  /** Returns milliseconds. */
  readonly now: () => number
}

/** In a take-over the old process has the group until it ends. */
const patienceMs = 60_000

/** Reads packets that rules refuse or drop. Another program or process may have the group. */
export class Refusals {
  readonly #open: () => PacketLog
  readonly #now: () => number
  readonly #attempts: Attempts
  /** When the first try failed. */
  #failedAt: number | undefined
  #log: PacketLog | undefined

  constructor(
    group: number,
    { open = openPacketLog, now = () => performance.now() }: Partial<RefusalsDeps> = {},
  ) {
    this.#open = () => open(group)
    this.#now = now
    this.#attempts = new Attempts(now)
  }

  /** Begins to listen, once. Throws when somebody else listens for more than a minute. */
  open(): void {
    try {
      this.#log ??= this.#open()
    } catch (error) {
      this.#failedAt ??= this.#now()
      const isHeld = error instanceof KernelError && error.kind === 'denied'
      if (!isHeld || this.#now() - this.#failedAt >= patienceMs) throw error
    }
  }

  /** Reports new refusals. `overruns` says how often packets were lost for lack of room. */
  read(refused: (refusal: Refusal) => void): { readonly overruns: number } {
    if (!this.#log) return { overruns: 0 }
    const packets = this.#log.read()
    // Some have come since this look began.
    const at = Date.now()
    for (const { bytes, prefix } of packets) {
      const refusal = reasons.has(prefix) ? refusalIn(bytes, prefix) : undefined
      if (refusal && this.#attempts.add(attemptOf(refusal))) refused({ ...refusal, at })
    }
    return { overruns: this.#log.takeOverruns() }
  }

  close(): void {
    this.#log?.close()
    this.#log = undefined
  }
}

/** Offsets in the IP header. */
const places = {
  IPv4: { protocol: 9, source: 12, destination: 16 },
  IPv6: { protocol: 6, source: 8, destination: 24 },
} as const

/** Prefixes of our own rules. Packets that others log to this group are skipped. */
const reasons: ReadonlySet<string> = new Set(['', ...Object.values(dropReasons)])

const attemptOf = ({ protocol, client, destination, sequence }: Omit<Refusal, 'at'>) =>
  `${protocol} ${client} ${destination} ${sequence}`

/** Reads a packet from its IP header on. Undefined for a packet that is cut before its ports. */
export function refusalIn(bytes: Buffer, reason: string): Omit<Refusal, 'at'> | undefined {
  const header = ipHeader(bytes)
  if (!header || bytes.length < header.length + 4) return undefined
  const { family, length: head } = header
  const { protocol: protocolAt, source, destination } = places[family]
  const protocol = bytes[protocolAt] ?? 0
  const place = (at: number, port: number) =>
    hostPort(addressText(family, bytes, at), bytes.readUInt16BE(head + port))
  return {
    ...{ reason, family, protocol },
    destinationKey: addressKey(family, bytes, destination),
    destinationPort: bytes.readUInt16BE(head + 2),
    client: place(source, 0),
    destination: place(destination, 2),
    sequence:
      protocol === protocolNumbers.TCP && bytes.length >= head + 8
        ? bytes.readUInt32BE(head + 4)
        : 0,
  }
}

/**
 * Tells a new connection from a packet that is sent again. Nobody answers a dropped packet, so TCP
 * sends it again for about two minutes. The attempts of the last one to two minutes are known, up
 * to a bound.
 */
export class Attempts {
  readonly #now: () => number
  #older = new Set<string>()
  #newer = new Set<string>()
  #turnAt: number

  /** `now` returns milliseconds. */
  constructor(now: () => number) {
    this.#now = now
    this.#turnAt = now() + turnMs
  }

  /** Returns false for an attempt that is known. */
  add(attempt: string): boolean {
    this.#turn()
    const isNew = !this.#newer.has(attempt) && !this.#older.has(attempt)
    // An attempt that goes on stays known, however long it takes.
    this.#newer.add(attempt)
    return isNew
  }

  #turn(): void {
    const now = this.#now()
    if (now < this.#turnAt && this.#newer.size < mostAttempts) return
    this.#older = this.#newer
    this.#newer = new Set()
    this.#turnAt = now + turnMs
  }
}

/** The last pause between two packets of TCP is about this long. */
const turnMs = 64_000
const mostAttempts = 16_384
