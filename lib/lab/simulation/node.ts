import { explainerOf, type Explainer } from '../../inspect/explain/explain.js'
import { planners } from '../../modes/planners.js'
import { hostPort, parseIp, type IpFamily } from '../../state/ip.js'
import { destinationsOf, staleFlowTest } from '../../sync/stale-flows.js'
import { Choices, type SimulationDeps } from './choices.js'
import type { Config, ModeName } from '../../config/config.js'
import type { DesiredService, DesiredState } from '../../state/desired-state.js'
import type { PlanReader } from '../../modes/mode.js'
import { endOf, type Packet, type Way } from '../../inspect/explain/packet.js'

/** The first packet of a connection, with its source port. */
export interface FirstPacket extends Packet {
  readonly sourcePort: number
}

interface Programmed {
  readonly state: DesiredState
  readonly explain: Explainer
}

interface Flow {
  readonly packet: FirstPacket
  readonly way: Way
}

/**
 * A node whose kernel is simulated: it keeps plans and sends each connection one of the ways that
 * `explain` finds through them. Where the rules leave a choice, earlier connections decide: the
 * table of connections, affinity, turns.
 */
export class SimulatedNode {
  readonly #choices: Choices
  readonly #programmed = new Map<IpFamily, Programmed>()
  /** The table of connections: UDP only, because every TCP connection has a port of its own. */
  readonly #flows = new Map<string, Flow>()
  /** The results of `explain` since the last change, because the same packet comes very often. */
  readonly #ways = new Map<string, readonly Way[]>()
  #mode: ModeName = 'iptables'
  #starts = 0
  #config: Config | undefined
  #planner: PlanReader | undefined

  constructor(deps: SimulationDeps) {
    this.#choices = new Choices(deps)
  }

  get mode(): ModeName {
    return this.#mode
  }

  /** How many daemons have begun here. */
  get starts(): number {
    return this.#starts
  }

  /** A daemon of this mode begins; the rules of the last one are gone. */
  start(mode: ModeName, config: Config): void {
    this.#starts++
    this.#mode = mode
    this.#config = config
    this.#planner = planners[mode](config)
    this.#choices.forget()
    this.flush()
  }

  /** Takes a state into the kernel, as a sync does. */
  write(state: DesiredState): void {
    if (!this.#planner) return
    const before = this.#programmed.get(state.family)
    const explain = explainerOf(this.#mode, this.#planner.plan(state))
    this.#programmed.set(state.family, { state, explain })
    this.#ways.clear()
    const isStale = staleFlowTest(state, before?.state)
    for (const [key, { packet, way }] of this.#flows) {
      const flow = {
        family: packet.family,
        destination: hostPort(packet.destination, packet.port),
        answeredBy: endOf(way),
      }
      if (isStale(flow)) this.#flows.delete(key)
    }
    this.#choices.keepOnly(state)
  }

  /** Removes the rules, as when another program deletes them; `write` brings them back. */
  flush(): void {
    this.#programmed.clear()
    this.#ways.clear()
  }

  /** The way that this packet takes. Ways that were tried are avoided while there are others. */
  pass(packet: FirstPacket, isTried: (way: Way) => boolean = () => false): Way {
    const key = flowKey(packet)
    const known = this.#flows.get(key)
    if (known && !isTried(known.way)) return known.way
    const ways = this.#waysOf(packet).filter(({ probability }) => probability > 0)
    const fresh = ways.filter((way) => !isTried(way))
    const service = this.#serviceAt(packet)
    const balancing = { mode: this.#mode, service, scheduler: this.#config?.ipvs.scheduler ?? '' }
    const way = this.#choices.choose(fresh.length > 0 ? fresh : ways, packet, balancing)
    if (packet.protocol === 'UDP' && way.end === 'sent') this.#flows.set(key, { packet, way })
    return way
  }

  /** Whether a Service has the address that the packet is sent to. */
  serves(packet: Packet): boolean {
    return this.#serviceAt(packet) !== undefined
  }

  #waysOf(packet: Packet): readonly Way[] {
    const programmed = this.#programmed.get(packet.family)
    if (!programmed || !this.#config) {
      return [{ probability: 1, hops: [], rules: 0, chains: 0, packet, end: 'sent' }]
    }
    const { explain, state } = programmed
    const { protocol, source, destination, port, inInterface } = packet
    const key = [protocol, source, destination, port, inInterface].join(' ')
    const known = this.#ways.get(key)
    if (known) return known
    const ways = explain({ state, config: this.#config, packet })
    this.#ways.set(key, ways)
    return ways
  }

  #serviceAt({ family, protocol, destination, port }: Packet): DesiredService | undefined {
    const { state } = this.#programmed.get(family) ?? {}
    if (!state) return undefined
    const asked = hostPort(parseIp(destination)?.text ?? destination, port)
    return [...state.services.values()].find(
      (service) =>
        service.protocol === protocol &&
        destinationsOf(service, state.node.localAddresses).includes(asked),
    )
  }
}

function flowKey({ protocol, source, sourcePort, destination, port }: FirstPacket): string {
  return [protocol, source, sourcePort, destination, port].join(' ')
}
