import { setTimeout as delay } from 'node:timers/promises'
import { addressOf, families, type Place } from '../../lib/lab/world/topology.js'
import type { World } from '../../lib/lab/world/world.js'
import { serviceAddress, steady } from './cluster.js'

/** Real clients make connections to one Service all the time, and others keep one open. */

interface Client {
  readonly name: string
  readonly place: Place
  readonly protocol: 'TCP' | 'UDP'
  readonly host: string
  readonly port: number
  /** Whether it asks again and again on one connection. */
  readonly keeps: boolean
}

/** The attempts of the clients of one kind since the last `take`. */
export interface Count {
  tried: number
  lost: number
}

export interface Pace {
  /** Between two questions of a client. */
  readonly pauseMs: number
  /** A question counts as lost after so long without an answer. */
  readonly patienceMs: number
}

interface Loss {
  /** When the attempt began. */
  readonly at: number
  readonly what: string
}

export interface Tally {
  readonly fresh: Count
  readonly open: Count
  /** The first losses, for the message. */
  readonly losses: string[]
  /** The latest loss, which may not be among the first. */
  latest: Loss
}

/** The time after which a UDP client asks again, as resolvers do. */
const repeatMs = 1_000
const lossesKept = 8

const emptyTally = (): Tally => ({
  fresh: { tried: 0, lost: 0 },
  open: { tried: 0, lost: 0 },
  losses: [],
  latest: { at: 0, what: '' },
})

function clientsOf(): readonly Client[] {
  const { IPv4, IPv6 } = serviceAddress(steady.number)
  const clusterIps = { IPv4, IPv6 }
  return families.flatMap((family) => {
    const clusterIp = { protocol: 'TCP', host: clusterIps[family], port: steady.port } as const
    const nodeIp = addressOf('node', family)
    const nodePort = { protocol: 'TCP', host: nodeIp, port: steady.nodePort } as const
    const dns = { protocol: 'UDP', host: clusterIps[family], port: steady.udpPort } as const
    return [
      { name: `pod ${family}`, place: 'client-pod', ...clusterIp, keeps: false },
      { name: `node ${family}`, place: 'node', ...clusterIp, keeps: false },
      { name: `outside ${family}`, place: 'outside', ...nodePort, keeps: false },
      { name: `pod UDP ${family}`, place: 'client-pod', ...dns, keeps: false },
      { name: `pod open ${family}`, place: 'client-pod', ...clusterIp, keeps: true },
      { name: `node open ${family}`, place: 'node', ...clusterIp, keeps: true },
      { name: `outside open ${family}`, place: 'outside', ...nodePort, keeps: true },
    ] as const
  })
}

export class Traffic {
  readonly #world: World
  readonly #pace: Pace
  readonly #clients = clientsOf()
  readonly #running: Promise<void>
  /** When the latest attempt that was answered began, by client. */
  readonly #servedAt = new Map<Client, number>()
  #isOver = false
  #tally = emptyTally()

  constructor(world: World, pace: Partial<Pace> = {}) {
    this.#world = world
    this.#pace = { pauseMs: 40, patienceMs: 5_000, ...pace }
    const loops = this.#clients.map((client) =>
      client.keeps ? this.#keep(client) : this.#ask(client),
    )
    this.#running = Promise.all(loops).then(() => undefined)
  }

  /** The counts since the last `take`. */
  get tally(): Tally {
    return this.#tally
  }

  /** Returns the counts since the last call, and begins anew. */
  take(): Tally {
    const tally = this.#tally
    this.#tally = emptyTally()
    return tally
  }

  /** The clients without an answer to a question that they asked after `since`. */
  waiting(since: number): readonly string[] {
    return this.#clients
      .filter((client) => (this.#servedAt.get(client) ?? 0) <= since)
      .map(({ name }) => name)
  }

  async stop(): Promise<void> {
    this.#isOver = true
    await this.#running
  }

  async #ask(client: Client): Promise<void> {
    while (!this.#isOver) {
      await this.#connect(client)
      await delay(this.#pace.pauseMs)
    }
  }

  /** Asks on one connection, and opens a new one when it has ended. */
  async #keep(client: Client): Promise<void> {
    let isOpen = false
    while (!this.#isOver) {
      isOpen = await (isOpen ? this.#askAgain(client) : this.#connect(client))
      await delay(this.#pace.pauseMs)
    }
  }

  async #askAgain(client: Client): Promise<boolean> {
    const began = performance.now()
    const result = await this.#world.agent(client.place).send(client.name, this.#pace.patienceMs)
    return this.#count('open', client, began, result)
  }

  async #connect(client: Client): Promise<boolean> {
    const { place, protocol, host, port, keeps, name } = client
    const began = performance.now()
    const [result] = await this.#world.agent(place).flow({
      ...{ protocol, host, port, timeoutMs: this.#pace.patienceMs },
      ...(protocol === 'UDP' ? { repeatMs } : {}),
      // The kernel chooses the port of a kept connection, so that no new connection gets it later.
      ...(keeps ? { keepAs: name, fromPort: 0 } : {}),
    })
    return this.#count('fresh', client, began, result)
  }

  #count(
    kind: 'fresh' | 'open',
    client: Client,
    began: number,
    result: { readonly outcome: string; readonly error?: string } | undefined,
  ): boolean {
    // The client had no free port, which says nothing about the proxy.
    if (result?.error?.includes('EADDRNOTAVAIL')) return false
    const tally = this.#tally
    const isServed = result?.outcome === 'reply'
    tally[kind].tried++
    if (isServed) {
      this.#servedAt.set(client, began)
      return true
    }
    tally[kind].lost++
    const connection = kind === 'fresh' ? 'new connection' : 'open connection'
    const why = result?.error ?? result?.outcome ?? 'nothing'
    const what = `${client.name}, ${connection}: ${why}`
    if (began > tally.latest.at) tally.latest = { at: began, what }
    if (tally.losses.length < lossesKept) tally.losses.push(what)
    return false
  }
}
