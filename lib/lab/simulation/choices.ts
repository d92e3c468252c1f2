import { sourceBucket } from '../../kernel/jenkins-hash.js'
import { hostPort } from '../../state/ip.js'
import type { DesiredService, DesiredState } from '../../state/desired-state.js'
import type { ModeName } from '../../config/config.js'
import { endOf, type Packet, type Way } from '../../inspect/explain/packet.js'

export interface SimulationDeps {
  readonly now: () => number
  /** From 0 to 1. */
  readonly random: () => number
}

interface Balancing {
  readonly mode: ModeName
  /** The Service that the packet is sent to; undefined if it is sent to none. */
  readonly service: DesiredService | undefined
  /** Of ipvs mode. */
  readonly scheduler: string
}

interface Record {
  readonly service: string
  readonly end: string
  readonly until: number
}

/**
 * Chooses one of the ways that rules leave open: the client's last one, else in turn or by chance.
 */
export class Choices {
  readonly #deps: SimulationDeps
  /** What ClientIP affinity remembers, by Service and client. */
  readonly #records = new Map<string, Record>()
  /** When each endpoint of a Service had its last turn. */
  readonly #turns = new Map<string, number>()
  #turn = 0

  constructor(deps: SimulationDeps) {
    this.#deps = deps
  }

  choose(ways: readonly Way[], packet: Packet, balancing: Balancing): Way {
    const [first] = ways
    if (!first) throw new RangeError('choose a way of a packet: explain found none')
    const { service } = balancing
    const seconds = service?.affinitySeconds
    if (!service || seconds === undefined) return this.#next(ways, packet, balancing)
    const key = recordKey(balancing.mode, service.key, packet)
    const record = this.#records.get(key)
    const now = this.#deps.now()
    const own =
      record && record.until > now
        ? ways.find((way) => way.end === 'sent' && endOf(way) === record.end)
        : undefined
    const way = own ?? this.#next(ways, packet, balancing)
    const until = now + seconds * 1000
    this.#records.set(key, { service: service.key, end: endOf(way), until })
    return way
  }

  /** Forgets clients of Services that are gone or have no affinity any more. */
  keepOnly({ services }: DesiredState): void {
    for (const [key, { service }] of this.#records) {
      if (services.get(service)?.affinitySeconds === undefined) this.#records.delete(key)
    }
  }

  forget(): void {
    this.#records.clear()
    this.#turns.clear()
  }

  #next(ways: readonly Way[], packet: Packet, balancing: Balancing): Way {
    const [first] = ways
    if (first && ways.length === 1) return first
    if (balancing.mode === 'ipvs' && isBySource(balancing)) {
      const sorted = ways.toSorted((one, other) => (endOf(one) < endOf(other) ? -1 : 1))
      const way = sorted[sourceBucket(packet.source, sorted.length)]
      if (way) return way
    }
    return takesTurns(ways, balancing) ? this.#inTurn(ways, balancing) : this.#byChance(ways)
  }

  #inTurn(ways: readonly Way[], { service }: Balancing): Way {
    const keyOf = (way: Way) => `${service?.key ?? ''} ${endOf(way)}`
    const lastTurn = (way: Way) => this.#turns.get(keyOf(way)) ?? 0
    const way = ways.reduce((one, other) => (lastTurn(other) < lastTurn(one) ? other : one))
    this.#turns.set(keyOf(way), ++this.#turn)
    return way
  }

  #byChance(ways: readonly Way[]): Way {
    const total = ways.reduce((sum, { probability }) => sum + probability, 0)
    let rest = this.#deps.random() * total
    const found = ways.find(({ probability }) => (rest -= probability) < 0)
    return found ?? (ways.at(-1) as Way)
  }
}

/** Whether the source decides in ipvs mode. Rules of other modes name the endpoint of a client. */
function isBySource({ service, scheduler }: Balancing): boolean {
  const word = service?.balance?.used
  if (word === undefined) return scheduler === 'sh' || scheduler === 'mh'
  return word === 'source-hash' || word === 'maglev'
}

/**
 * Userspace and ipvs mode give every endpoint its turn, the others do if the Service asks for it.
 * Connections end at once here, so the endpoint with the fewest is the one whose turn is longest ago.
 */
function takesTurns(ways: readonly Way[], { mode, service }: Balancing): boolean {
  const isEven = new Set(ways.map(({ probability }) => probability.toFixed(6))).size === 1
  const usual = mode === 'userspace' || mode === 'ipvs' ? 'round-robin' : 'random'
  const word = service?.balance?.used ?? usual
  return isEven && (word === 'round-robin' || word === 'least-connections')
}

/** IPVS remembers clients by virtual server, the others by service port. */
function recordKey(mode: ModeName, service: string, { source, destination, port }: Packet): string {
  return mode === 'ipvs'
    ? `${service} ${source} ${hostPort(destination, port)}`
    : `${service} ${source}`
}
