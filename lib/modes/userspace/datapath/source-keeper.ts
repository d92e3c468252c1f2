import { existsSync, readFileSync } from 'node:fs'
import type { Route, Routes } from '../../../kernel/routes.js'
import type { SocketAddress } from '../../../kernel/sockets/socket-address.js'
import { ipFamilies, type IpFamily } from '../../../state/ip.js'
import { isAmongPods, isLeft, type SourceRule } from './source-rule.js'

/** A connection whose endpoint is known. */
interface Dialed {
  readonly client: SocketAddress
  /** The address that the client asked; undefined where the kernel does not tell it. */
  readonly asked: SocketAddress | undefined
  readonly target: { readonly ip: string; readonly isLocal?: boolean }
}

interface Neighbour extends Route {
  readonly name: string
  readonly kind: string
}

type RouteReader = Pick<Routes, 'to' | 'device'>

/** Routes change seldom, and every connection asks for two. */
const rememberMs = 5000
const maxRemembered = 8192

/**
 * Decides whether an endpoint may see the client's own address. It may where the kernel modes leave
 * the address, and where the endpoint's answers come back through this node. Answers on another way
 * would reach a client that has no connection with the endpoint.
 */
export class SourceKeeper {
  readonly #routes: RouteReader
  readonly #now: () => number
  readonly #ready: Int32Array
  readonly #bridgesAreFiltered: () => boolean
  #known = new Map<string, Neighbour | undefined>()
  #knownSince = 0

  /** `ready` is shared with the thread that prepares the kernel, see {@link SourceSwitch}. */
  constructor(
    ready: SharedArrayBuffer,
    routes: RouteReader,
    now: () => number,
    bridgesAreFiltered = filtersBridges,
  ) {
    this.#ready = new Int32Array(ready)
    this.#routes = routes
    this.#now = now
    this.#bridgesAreFiltered = bridgesAreFiltered
  }

  keeps(rule: SourceRule, { client, asked, target }: Dialed): boolean {
    const family = client.ip.includes(':') ? 'IPv6' : 'IPv4'
    if (Atomics.load(this.#ready, cellOf(family)) === 0) return false
    // A pod that reaches itself would take an answer from its own address for its own packet.
    if (target.ip === client.ip) return false
    const from = this.#neighbour(client.ip)
    // A client on this node has the address of this node anyway.
    if (!from || from.isLocal) return false
    const isPod = isAmongPods(rule.pods, client.ip, from.name)
    if (!isLeft(rule, isPod, asked)) return false
    const to = this.#neighbour(target.ip)
    const isNear = isPod && !from.hasGateway
    if (!to || !(isNear || to.isLocal || target.isLocal === true)) return false
    // Pods on one bridge answer each other directly, unless their routes say otherwise, which
    // cannot be seen from here.
    const isBridged = from.device === to.device && from.kind === 'bridge'
    return !isBridged || (!rule.avoidsBridges && !this.#bridgesAreFiltered())
  }

  #neighbour(ip: string): Neighbour | undefined {
    const now = this.#now()
    if (now - this.#knownSince > rememberMs || this.#known.size >= maxRemembered) {
      this.#known = new Map()
      this.#knownSince = now
    }
    if (this.#known.has(ip)) return this.#known.get(ip)
    const route = this.#routes.to(ip)
    const device = route && this.#routes.device(route.device)
    const found = route && { ...route, name: device?.name ?? '', kind: device?.kind ?? '' }
    this.#known.set(ip, found)
    return found
  }
}

/** Whether the kernel is ready for sockets with foreign addresses, by family. */
export class SourceSwitch {
  readonly shared = new SharedArrayBuffer(4 * ipFamilies.length)
  readonly #cells = new Int32Array(this.shared)

  set(family: IpFamily, isReady: boolean): void {
    Atomics.store(this.#cells, cellOf(family), isReady ? 1 : 0)
  }
}

function cellOf(family: IpFamily): number {
  return family === 'IPv4' ? 0 : 1
}

/** Whether iptables sees packets within a bridge. Then its pods may answer each other directly. */
export function filtersBridges(): boolean {
  const file = '/proc/sys/net/bridge/bridge-nf-call-iptables'
  return existsSync(file) && readFileSync(file, 'utf8').trim() === '1'
}
