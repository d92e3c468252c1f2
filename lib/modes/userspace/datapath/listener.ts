import type { SocketAddress } from '../../../kernel/sockets/socket-address.js'
import { hostPort } from '../../../state/ip.js'
import { Balancer } from './balancer.js'
import type {
  DataPathDeps,
  EndpointChanges,
  EndpointChoice,
  ListenerSpec,
  Target,
} from './data-path.js'
import { encodeProxyHeader } from './proxy-header.js'
import { ListenerTraffic, type ListenerCounts } from './traffic.js'

/** What a client of UDP asked: Node does not tell it, and `splice` needs it for replies alone. */
const unknown = (): SocketAddress | undefined => undefined

/** One open listener: what both data paths and both protocols have in common. */
export abstract class Listener {
  readonly balancer: Balancer
  readonly traffic = new ListenerTraffic()
  /** Resolves when the listener has stopped and no connection is left. */
  readonly idle: Promise<void>
  /** The part of the spec that changes. */
  choice: Omit<EndpointChoice, 'endpoints'>
  readonly spec: ListenerSpec
  protected readonly deps: DataPathDeps
  protected isStopped = false
  protected becomeIdle: () => void = () => undefined

  constructor(spec: ListenerSpec, deps: DataPathDeps) {
    this.spec = spec
    this.choice = spec
    this.deps = deps
    this.balancer = new Balancer(deps, spec)
    this.idle = new Promise((resolve) => (this.becomeIdle = resolve))
  }

  /** The number of its socket; undefined when unknown. */
  abstract get descriptor(): number | undefined
  abstract listen(): number | Promise<number>
  /** Stops listening; connections go on. */
  abstract stop(): void
  /** Stops listening, but keeps the socket open while a UDP client needs it for an answer. */
  abstract handOver(): void
  /** Ends the connections that are left. */
  abstract cut(): void

  get service(): string {
    return this.spec.service
  }

  update(changes: EndpointChanges): void {
    // Clients that waited may go on at once, and do so by the new choice.
    this.choice = changes
    this.balancer.update(changes)
  }

  takeCounts(): ListenerCounts | undefined {
    return this.traffic.take(this.spec.key, (endpoint) => this.balancer.needs(endpoint))
  }

  /** Whether the endpoint is to see the client's own address. */
  keeps(client: SocketAddress, target: Target, asked = unknown): boolean {
    const { source } = this.choice
    const { sourceKeeper } = this.deps
    if (!source || !sourceKeeper) return false
    return sourceKeeper.keeps(source, { client, asked: asked(), target })
  }

  /** The PROXY header for the endpoint, if it gets one. `own` is the address of our socket. */
  header(client: SocketAddress, own: () => SocketAddress, asked = unknown): Uint8Array | undefined {
    const { proxyHeader } = this.choice
    if (!proxyHeader) return undefined
    const to = asked() ?? proxyHeader.asked ?? own()
    return encodeProxyHeader(proxyHeader.version, this.spec.protocol, client, to)
  }

  /** Tells the access log of a connection or UDP client that has ended. */
  protected log(carried: Carried, end: string): void {
    const { accessLog, now } = this.deps
    if (!accessLog) return
    const { peer, target, attempts, bytesToEndpoint, bytesToClient, startedAt } = carried
    accessLog({
      service: this.service,
      protocol: this.spec.protocol,
      client: peer ? hostPort(peer.ip, peer.port) : '',
      endpoint: target?.key ?? '',
      attempts,
      bytesToEndpoint,
      bytesToClient,
      durationMs: Math.round(now() - startedAt),
      end,
    })
  }
}

/** A connection or UDP client. */
export interface Carried {
  /** The client's address, where somebody needs it. */
  readonly peer: SocketAddress | undefined
  /** Its endpoint, once it has one. */
  readonly target: Target | undefined
  readonly attempts: number
  readonly bytesToEndpoint: number
  readonly bytesToClient: number
  readonly startedAt: number
}
