import type { DescriptorBudget } from './descriptors.js'
import type { ListenerCounts } from './traffic.js'

/**
 * What copies the bytes. A data path lives in one worker thread and owns the listeners
 * of that worker; nothing of it is shared, except the budget of descriptors. There are two:
 * `net` on Node's own sockets, and `splice` on raw descriptors. Both behave the same.
 */
export interface DataPath {
  readonly name: DataPathName
  /**
   * Listens and resolves with the port. Rejects with an error that carries the system's `code`,
   * such as EADDRINUSE; nothing is left behind then.
   */
  open(spec: ListenerSpec): Promise<number>
  /** The number of the listener's socket, for whoever takes it over; undefined when unknown. */
  descriptorOf(key: string): number | undefined
  /** New endpoints or affinity for an open listener; its socket and port stay. */
  update(key: string, changes: EndpointChanges): void
  /** Stops listening. TCP connections live on (US45); UDP clients end with their socket (US54). */
  close(key: string): Promise<void>
  /**
   * As `close`, for a listener whose socket another process holds as well: UDP clients keep it
   * for the answers they wait for, until they are idle.
   */
  handOver(key: string): void
  /**
   * Stops listening everywhere, lets connections finish and cuts what is left after `graceMs`.
   * Resolves when no connection is left.
   */
  drain(graceMs: number): Promise<void>
  /** What happened since the last call, for listeners with news. */
  takeCounts(): readonly ListenerCounts[]
}

export type DataPathName = 'net' | 'splice'

/** One open listener: what both data paths, and both protocols, have in common. */
export interface Listener {
  listen(): Promise<number>
  update(changes: EndpointChanges): void
  /** Stops listening; what is under way may go on. */
  stop(): void
  /** Stops listening, with the socket kept open as long as anything under way needs it. */
  handOver(): void
  /** Ends what is still under way. */
  cut(): void
  /** Resolves when nothing is under way any more. */
  readonly idle: Promise<void>
  /** Of its socket; undefined when unknown. */
  readonly descriptor: number | undefined
  takeCounts(): ListenerCounts | undefined
}

/** Everything one listener has to know. A plain value: it crosses to the worker as a message. */
export interface ListenerSpec extends EndpointChoice {
  /** Unique on the node: family, service port and endpoint list. */
  readonly key: string
  /** `namespace/name:port`, for the access log. */
  readonly service: string
  readonly protocol: 'TCP' | 'UDP'
  /** An address, or the wildcard of its family (`::` never takes IPv4 as well). */
  readonly address: string
  /** 0: the kernel picks (US31). */
  readonly port: number
  /** An open socket to go on with, instead of a new one; it belongs to the data path from then on. */
  readonly descriptor?: number
  /** Idle time after which a UDP client is forgotten (US51). */
  readonly udpIdleMs: number
}

/** The part of a listener's spec that changes while it is open. */
export interface EndpointChoice {
  /** Empty: a connection that gets here nevertheless is reset at once (US43). */
  readonly endpoints: readonly Target[]
  /**
   * Keys of endpoints whose UDP clients stay although new ones are not sent there: terminating,
   * but serving (E21). Clients of any other endpoint that left are released (US53).
   */
  readonly servingKeys: readonly string[]
  /** ClientIP affinity (S21, US62); undefined means none. */
  readonly affinityMs: number | undefined
}

/**
 * What leads from one choice of endpoints to the next. It crosses to the worker instead of the
 * whole choice, so that its work, too, is as long as the change and not as the list.
 */
export interface EndpointChanges extends Omit<EndpointChoice, 'endpoints'> {
  /** Keys of endpoints. */
  readonly removed: readonly string[]
  readonly added: readonly Target[]
}

/** An endpoint as far as a data path needs it. */
export interface Target {
  /** `ip:port` or `[ip]:port`. */
  readonly key: string
  readonly ip: string
  readonly port: number
}

export interface DataPathDeps {
  /** Milliseconds that never jump back. */
  readonly now: () => number
  /** From 0 up to 1. */
  readonly random: () => number
  readonly descriptors: DescriptorBudget
  readonly passiveHealth: boolean
  /** Called at the end of every connection; undefined when nobody wants to know. */
  readonly accessLog: ((entry: AccessEntry) => void) | undefined
  /** Rare events that an operator has to see, such as running out of descriptors. */
  readonly warn: (message: string) => void
}

/** One finished connection or UDP client. */
export interface AccessEntry {
  readonly service: string
  readonly protocol: 'TCP' | 'UDP'
  /** `ip:port` as this node saw it. */
  readonly client: string
  /** Key of the endpoint, empty when none could be reached. */
  readonly endpoint: string
  readonly attempts: number
  readonly bytesToEndpoint: number
  readonly bytesToClient: number
  readonly durationMs: number
  /** How it ended: `ok`, `no endpoint`, `reset`, or the code of the error. */
  readonly end: string
}

/** How long each attempt to reach an endpoint may take; every attempt takes the next one (US40). */
export const dialTimeoutsMs: readonly number[] = [250, 500, 1000, 2000]

/** Peers that vanished without a word are found out after this, which the original never did. */
export const keepAliveDelayMs = 60_000

/** Most connections end sooner, and are spared the calls that turn keep-alive on. */
export const youthMs = 15_000

/** UDP clients one worker remembers; the one idle longest makes room for a new one. */
export const maxUdpClients = 8192

/** The kernel caps it at net.core.somaxconn. */
export const listenBacklog = 4096

export function endpointChanges(
  before: readonly Target[],
  { endpoints, servingKeys, affinityMs }: EndpointChoice,
): EndpointChanges {
  // Most changes are in one place of a list that is else the same.
  const isSame = (old: Target | undefined, now: Target | undefined) => old?.key === now?.key
  const shorter = Math.min(before.length, endpoints.length)
  let head = 0
  while (head < shorter && isSame(before[head], endpoints[head])) head++
  let tail = 0
  while (tail < shorter - head && isSame(before.at(-1 - tail), endpoints.at(-1 - tail))) tail++
  const removed = new Set(before.slice(head, before.length - tail).map(({ key }) => key))
  // An endpoint that is in both parts only moved.
  const added = endpoints
    .slice(head, endpoints.length - tail)
    .filter(({ key }) => !removed.delete(key))
  return { removed: [...removed], added, servingKeys, affinityMs }
}
