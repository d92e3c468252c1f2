import { once } from 'node:events'
import { connect, createServer, type Server, type Socket } from 'node:net'
import { afterReading } from '../../async.js'
import { messageOf } from '../../errors.js'
import { reset } from '../../kernel/sockets/reset.js'
import type { DesiredService, Endpoint } from '../../state/desired-state.js'
import type { IpFamily } from '../../state/ip.js'
import { loopbackOfNodePorts } from '../../state/node-view.js'
import type { Log, Meter, ServiceFailure } from '../mode.js'
import type { Admission } from './admission.js'
import { sets } from './names.js'
import { elementId } from './part.js'
import type { NftablesPlan } from './plan.js'

/** Endpoints tried for one connection before it is given up. */
const attempts = 4
/** An endpoint that does not answer is left for the next one, as by kube-proxy. */
const dialMs = 5_000

interface LocalhostPortsDeps {
  readonly log: Log
  readonly meter: Pick<Meter, 'count' | 'gauge'>
  readonly random: () => number
  /** Milliseconds. */
  readonly now: () => number
  readonly admission: Admission
}

interface Listener {
  readonly server: Server
  readonly connections: Set<Socket>
  /** With session affinity: the endpoint that clients stay with. All of them have one address. */
  stays: { readonly endpoint: string; readonly until: number } | undefined
}

/**
 * TCP node ports on 127.0.0.1 and ::1. NAT can send packets for loopback to an endpoint only with
 * route_localnet, which lets other hosts reach loopback (CVE-2020-8558). So a listener serves these
 * node ports and connects to an endpoint itself. The node's own traffic is not bound by
 * externalTrafficPolicy (S18), so any endpoint may get it.
 */
export class LocalhostPorts {
  readonly #deps: LocalhostPortsDeps
  readonly #plans = new Map<IpFamily, NftablesPlan>()
  /** By `FAMILY PORT`, as the failures. */
  readonly #listeners = new Map<string, Listener>()
  readonly #failed = new Map<string, ServiceFailure>()
  #isClosed = false

  constructor(deps: LocalhostPortsDeps) {
    this.#deps = deps
  }

  /** Opens and closes listeners to match the plan. Returns the ports that could not be opened. */
  async update(plan: NftablesPlan): Promise<readonly ServiceFailure[]> {
    const previous = this.#plans.get(plan.family)
    this.#plans.set(plan.family, plan)
    const host = loopbackOfNodePorts(plan.state)
    const changed = portsToLookAt(
      plan,
      previous && loopbackOfNodePorts(previous.state) === host ? previous : undefined,
    )
    // A port that failed before is tried again at every sync.
    for (const [id] of ofFamily(this.#failed, plan.family)) changed.add(Number(id.split(' ')[1]))
    for (const port of changed) {
      const id = `${plan.family} ${port}`
      const owner = host === undefined ? undefined : ownerOf(plan, port)
      if (host === undefined || !owner) this.#closeOne(id)
      else if (!this.#listeners.has(id)) await this.#open(id, { host, port, owner, plan })
    }
    this.#measure(plan.family)
    return ofFamily(this.#failed, plan.family).map(([, failure]) => failure)
  }

  close(): void {
    this.#isClosed = true
    for (const id of [...this.#listeners.keys()]) this.#closeOne(id)
    for (const family of this.#plans.keys()) this.#measure(family)
  }

  #measure(family: IpFamily): void {
    const { length } = ofFamily(this.#listeners, family)
    const labels = { ip_family: family }
    this.#deps.meter.gauge('nftables_localhost_nodeport_listeners', labels, length)
  }

  async #open(
    id: string,
    { host, port, owner, plan }: { host: string; port: number; owner: string; plan: NftablesPlan },
  ): Promise<void> {
    const server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (client) =>
      this.#serve(client, listener, plan.family, port),
    )
    const listener: Listener = { server, connections: new Set(), stays: undefined }
    try {
      await once(server.listen({ host, port, ipv6Only: true }), 'listening')
    } catch (error) {
      const reason = `listen on ${host} port ${port} for node port: ${messageOf(error)}`
      this.#failed.set(id, { key: owner, reason, event: 'PortConflict' })
      const labels = { ip_family: plan.family }
      this.#deps.meter.count('nftables_localhost_nodeport_listener_creation_failures_total', labels)
      return
    }
    server.on('error', (error) => {
      if (this.#deps.admission.noteExhaustion(error)) return
      this.#deps.log.warn({ port, error: messageOf(error) }, 'localhost node port failed')
    })
    this.#failed.delete(id)
    if (this.#isClosed) server.close()
    else this.#listeners.set(id, listener)
  }

  #closeOne(id: string): void {
    this.#failed.delete(id)
    const listener = this.#listeners.get(id)
    if (!listener) return
    this.#listeners.delete(id)
    listener.server.close()
    for (const socket of listener.connections) socket.destroy()
  }

  #serve(client: Socket, listener: Listener, family: IpFamily, port: number): void {
    const { admission } = this.#deps
    if (!admission.tryEnter()) {
      client.on('error', () => undefined)
      reset(client)
      return
    }
    const plan = this.#plans.get(family)
    const owner = plan && ownerOf(plan, port)
    const service = owner === undefined ? undefined : plan?.state.services.get(owner)
    listener.connections.add(client)
    client.on('close', () => {
      listener.connections.delete(client)
      admission.leave()
    })
    // An error of one side ends the other, see `join`.
    client.on('error', () => undefined)
    const order = service ? this.#orderFor(service, listener) : []
    const tryNext = (left: readonly Endpoint[]) => {
      const [endpoint, ...rest] = left
      if (!endpoint || client.destroyed) {
        reset(client)
        return
      }
      const { ip: host, port } = endpoint
      const upstream = connect({ host, port, allowHalfOpen: true })
      const stop = afterReading(dialMs, () => upstream.destroy(new Error('no answer')))
      // Without descriptors no other endpoint can be reached either.
      upstream.once('error', (error) => tryNext(admission.noteExhaustion(error) ? [] : rest))
      upstream.once('close', stop)
      upstream.once('connect', () => {
        stop()
        upstream.removeAllListeners('error')
        // The node port may have gone meanwhile. Then nothing else would end this connection.
        if (client.destroyed) upstream.destroy()
        else {
          this.#remember(listener, service, endpoint)
          join(client, upstream)
        }
      })
    }
    tryNext(order)
  }

  /** Endpoints to try, in random order after the one that clients stay with. */
  #orderFor(
    { clusterEndpoints, affinitySeconds }: DesiredService,
    { stays }: Listener,
  ): readonly Endpoint[] {
    const stayed = affinitySeconds !== undefined && stays && this.#deps.now() < stays.until
    const isFirst = ({ key }: Endpoint) => stayed === true && key === stays.endpoint
    const order = clusterEndpoints.filter(isFirst)
    const left = clusterEndpoints.filter((endpoint) => !isFirst(endpoint))
    while (left.length > 0 && order.length < attempts) {
      order.push(...left.splice(Math.floor(this.#deps.random() * left.length), 1))
    }
    return order
  }

  #remember(listener: Listener, service: DesiredService | undefined, { key }: Endpoint): void {
    const seconds = service?.affinitySeconds
    listener.stays =
      seconds === undefined
        ? undefined
        : { endpoint: key, until: this.#deps.now() + seconds * 1000 }
  }
}

function ofFamily<T>(all: ReadonlyMap<string, T>, family: IpFamily): readonly [string, T][] {
  return [...all].filter(([id]) => id.startsWith(`${family} `))
}

/** Carries both directions, each until its own end; an error ends both at once. */
function join(client: Socket, upstream: Socket): void {
  client.on('error', () => reset(upstream))
  upstream.on('error', () => reset(client))
  client.on('close', () => upstream.destroy())
  upstream.on('close', () => client.destroy())
  client.pipe(upstream)
  upstream.pipe(client)
}

function portsToLookAt(plan: NftablesPlan, previous: NftablesPlan | undefined): Set<number> {
  const { added, changed, removed } = plan.requests.since(previous?.requests)
  const ports = new Set<number>()
  for (const [id] of [...added, ...changed, ...removed]) {
    const port = portOf(id)
    if (port !== undefined) ports.add(port)
  }
  return ports
}

const tcpPorts = elementId({ set: sets.serviceNodePorts, key: ['tcp', ''] })

function portOf(id: string): number | undefined {
  return id.startsWith(tcpPorts) ? Number(id.slice(tcpPorts.length)) : undefined
}

/** The key of the service port that has the node port; undefined if there is no endpoint. */
function ownerOf(plan: NftablesPlan, port: number): string | undefined {
  return plan.requests.get(`${tcpPorts}${port}`)?.[0]?.owner
}
