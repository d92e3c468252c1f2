import type { DataPathDeps, EndpointChanges, ListenerSpec } from './data-path.js'
import { descriptorsPerConnection } from './descriptors.js'
import { Listener, type Carried } from './listener.js'
import { RemovedEndpoints } from './removed-endpoints.js'

interface Connection extends Carried {
  /** `ok`, or why it ended. */
  readonly end: string
  reset(): void
}

/** One listening TCP socket and the connections that came through it. */
export abstract class TcpListenerBase<C extends Connection> extends Listener {
  protected readonly connections = new Set<C>()
  readonly #removedEndpoints: RemovedEndpoints

  constructor(spec: ListenerSpec, deps: DataPathDeps) {
    super(spec, deps)
    const isUsed = (endpoint: string) => this.balancer.has(endpoint)
    this.#removedEndpoints = new RemovedEndpoints(this.connections, isUsed, spec.servingKeys)
  }

  protected abstract stopListening(): void

  override update(changes: EndpointChanges): void {
    super.update(changes)
    this.#removedEndpoints.update(changes)
  }

  stop(): void {
    if (this.isStopped) return
    this.isStopped = true
    this.stopListening()
    if (this.connections.size === 0) this.becomeIdle()
  }

  handOver(): void {
    this.stop()
  }

  cut(): void {
    for (const connection of this.connections) connection.reset()
  }

  protected tryTakeDescriptors(): boolean {
    const held = this.connections.size * descriptorsPerConnection
    return this.deps.descriptors.tryTakeFor(held, descriptorsPerConnection)
  }

  protected began(connection: C): void {
    this.connections.add(connection)
    this.traffic.active++
  }

  /** Call it once, when both sockets are closed. */
  ended(connection: C): void {
    this.connections.delete(connection)
    if (connection.target) this.balancer.ended(connection.target)
    this.traffic.active--
    this.deps.descriptors.release(descriptorsPerConnection)
    this.log(connection, connection.end)
    if (this.isStopped && this.connections.size === 0) this.becomeIdle()
  }
}
