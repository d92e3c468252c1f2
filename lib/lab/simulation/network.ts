import { cidrContains, isLoopback, parseCidr, parseIp, type IpFamily } from '../../state/ip.js'
import {
  addresses,
  addressOf,
  bridgeName,
  isOnNode,
  placeOf,
  podsOfNode,
  ranges,
  uplinkName,
  type Place,
} from '../world/topology.js'
import { SimulatedNode, type FirstPacket } from './node.js'
import { closedTooSoon, good, late, refusal, type Outcome } from '../../sources/health/outcome.js'
import type { CheckTarget } from '../../sources/health/messages.js'
import type { SimulationDeps } from './choices.js'
import type { FlowRequest, FlowResult } from '../world/agent-protocol.js'
import { endOf, type Way } from '../../inspect/explain/packet.js'

/** Who answers, and on which ports. */
interface Serving {
  readonly name: string
  readonly ports: readonly number[]
}

interface Kept {
  readonly packet: FirstPacket
  readonly way: Way
  /** The daemon that carries this connection and ends it; undefined if the kernel carries it. */
  readonly proxiedBy: number | undefined
}

/** Told of every connection, with the way that it took. */
type Watcher = (way: Way, packet: FirstPacket) => void

/**
 * The places of a world without any packet: who serves where, and what becomes of a request. Its
 * answers have the form of those that real packets get.
 */
export class SimulatedNetwork {
  readonly node: SimulatedNode
  readonly #watcher: Watcher
  /** By address. */
  readonly #serving = new Map<string, Serving>()
  readonly #dark = new Set<string>()
  readonly #kept = new Map<string, Kept>()
  #port = firstPort

  constructor(deps: SimulationDeps, watcher: Watcher = () => undefined) {
    this.node = new SimulatedNode(deps)
    this.#watcher = watcher
  }

  serve(at: readonly string[], server: Serving): void {
    for (const address of at) this.#serving.set(address, server)
  }

  stopServing(at: readonly string[]): void {
    for (const address of at) this.#serving.delete(address)
  }

  /** Drops all packets to these addresses, or lets them through again. */
  goDark(at: readonly string[], isDark: boolean): void {
    for (const address of at) {
      if (isDark) this.#dark.add(address)
      else this.#dark.delete(address)
    }
  }

  /** The result of a health check from the node. */
  check({ ip, port, check }: CheckTarget): Outcome {
    const asked = check.port ?? port
    if (this.#dark.has(ip)) return late(check, false)
    if (!this.#serving.get(ip)?.ports.includes(asked)) return refusal('ECONNREFUSED')
    // Pods of the playground speak HTTP.
    return check.kind === 'grpc' ? closedTooSoon : good
  }

  flow(place: Place, request: FlowRequest): readonly FlowResult[] {
    return Array.from({ length: request.count ?? 1 }, () => this.#once(place, request))
  }

  /** Sends once more on a connection that was kept. */
  send(id: string): FlowResult {
    const kept = this.#kept.get(id)
    if (!kept) return { outcome: 'dropped', error: `there is no connection ${id}` }
    if (kept.packet.protocol === 'UDP') return this.#ask(kept.packet)
    const { packet, way, proxiedBy = this.node.starts } = kept
    if (proxiedBy !== this.node.starts) return { outcome: 'closed' }
    // Connections of IPVS end with their virtual server.
    const isOver = this.node.mode === 'ipvs' && way.packet.isDnated && !this.node.serves(packet)
    if (isOver) return { outcome: 'closed' }
    const result = this.#resultOf(way)
    return result.outcome === 'reply' ? result : { outcome: 'closed' }
  }

  forget(id: string): void {
    this.#kept.delete(id)
  }

  #once(place: Place, request: FlowRequest): FlowResult {
    const packet = this.#packetOf(place, request)
    return this.#isAnsweredFor(packet) ? this.#ask(packet, request.keepAs) : { outcome: 'dropped' }
  }

  #ask(packet: FirstPacket, keepAs?: string): FlowResult {
    const failed = new Set<string>()
    for (;;) {
      const way = this.node.pass(packet, (each) => failed.has(endOf(each)))
      const result = this.#resultOf(way)
      const isDead = result.outcome !== 'reply' && way.end === 'sent' && !way.isAnsweredPast
      // The proxy dials the next endpoint when one is dead (US41).
      if (isDead && this.node.mode === 'userspace' && way.packet.isDnated) {
        if (!failed.has(endOf(way))) {
          failed.add(endOf(way))
          continue
        }
        return { outcome: packet.protocol === 'TCP' ? 'closed' : 'dropped', tried: [...failed] }
      }
      this.#watcher(way, packet)
      if (keepAs !== undefined) {
        const isProxied = this.node.mode === 'userspace' && way.packet.isDnated
        const proxiedBy = isProxied ? this.node.starts : undefined
        this.#kept.set(keepAs, { packet, way, proxiedBy })
      }
      if (result.outcome === 'reply') return result
      return { ...result, tried: way.end === 'sent' ? [endOf(way)] : [] }
    }
  }

  #resultOf({ end, packet, isAnsweredPast }: Way): FlowResult {
    if (end === 'dropped' || isAnsweredPast) return { outcome: 'dropped' }
    if (end === 'rejected') return { outcome: 'refused' }
    const place = placeOf(packet.destination)
    // Nothing has the address, so nobody answers.
    if (!place) return { outcome: end === 'local' ? 'refused' : 'dropped' }
    if (this.#dark.has(packet.destination)) return { outcome: 'dropped' }
    const server = this.#serving.get(packet.destination)
    if (!server?.ports.includes(packet.port)) return { outcome: 'refused' }
    const backend = server.name
    const source = packet.isMasqueraded ? nodeAddressTowards(packet) : packet.source
    return { outcome: 'reply', backend, source }
  }

  #packetOf(place: Place, { protocol, host, port, from, fromPort }: FlowRequest): FirstPacket {
    const ip = parseIp(host)
    const { family = 'IPv4' as const, text = host } = ip ?? {}
    // A program of the node that asks the node itself sends from the address that it asks.
    const isOwn = place === 'node' && ((ip && isLoopback(ip)) || placeOf(text) === 'node')
    return {
      family,
      protocol: protocol === 'ICMP' ? 'UDP' : protocol,
      source: from ?? (isOwn ? text : addressOf(place, family)),
      sourcePort: fromPort ?? this.#nextPort(),
      destination: text,
      port,
      inInterface: interfaceOf(place),
      isSocketHere: isOnNode(place),
      mark: 0,
      isDnated: false,
      isMasqueraded: false,
    }
  }

  /** On the network of the nodes, packets come only to addresses that some machine has (S34). */
  #isAnsweredFor(packet: FirstPacket): boolean {
    if (packet.inInterface !== uplinkName || placeOf(packet.destination)) return true
    const ip = parseIp(packet.destination)
    const isOnLan = ip !== undefined && lan.some((cidr) => cidrContains(cidr, ip))
    // In ipvs mode the node has the addresses of Services, and answers ARP for them (IP02).
    const hasIt = this.node.mode === 'ipvs' && packet.family === 'IPv4'
    return !isOnLan || (hasIt && this.node.serves(packet))
  }

  #nextPort(): number {
    this.#port = this.#port < lastPort ? this.#port + 1 : firstPort
    return this.#port
  }
}

const firstPort = 49_152
const lastPort = 65_535

/** The interface of the node through which packets of a place come in. */
function interfaceOf(place: Place): string | undefined {
  if (place === 'node') return undefined
  return isPodOfNode(place) ? bridgeName : uplinkName
}

function isPodOfNode(place: Place | undefined): boolean {
  return podsOfNode.some((pod) => pod === place)
}

/** The address of the node on the way to this endpoint, which masquerading takes. */
function nodeAddressTowards(packet: { family: IpFamily; destination: string }): string {
  const bridge = addresses.node.length - 1
  const place = placeOf(packet.destination)
  return addressOf('node', packet.family, isPodOfNode(place) ? bridge : 0)
}

const lan = Object.values(ranges.lan).flatMap((text) => parseCidr(text) ?? [])
