import type { CarriedConnection } from '../../mode.js'
import type { Sockets } from '../../../kernel/sockets/sockets.js'
import type { Balance } from '../../../state/balance.js'
import type { DescriptorBudget } from './descriptors.js'
import type { OwnFrontends } from './own-frontends.js'
import type { ProxyHeader } from './proxy-header.js'
import type { SourceKeeper } from './source-keeper.js'
import type { SourceRule } from './source-rule.js'

export type DataPathName = 'net' | 'splice'

/** Everything one listener has to know. A plain value, which is sent to the worker. */
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
  /** An open socket to use instead of a new one; it then belongs to the data path. */
  readonly descriptor?: number
  /** Idle time after which a UDP client is forgotten (US51). */
  readonly udpIdleMs: number
}

/** The part of a listener's spec that changes while it is open. */
export interface EndpointChoice {
  /** Without endpoints a connection is reset at once (US43). */
  readonly endpoints: readonly Target[]
  /**
   * Keys of endpoints that are terminating but still serving (E21). Their UDP clients stay,
   * although new ones are sent elsewhere. Clients of other removed endpoints are ended (US53).
   */
  readonly servingKeys: readonly string[]
  /** ClientIP affinity (S21, US62); undefined means none. */
  readonly affinityMs: number | undefined
  /** How the endpoint of the next connection is chosen; undefined means round robin. */
  readonly balance?: EndpointBalance | undefined
  /** The header that new connections begin with; undefined means none. */
  readonly proxyHeader?: ProxyHeader | undefined
  /** Decides when endpoints see the client's own address; undefined means never. */
  readonly source?: SourceRule | undefined
  /** TCP connections are reset this long after their endpoint left; undefined: never (US45). */
  readonly resetAfterMs?: number | undefined
  /** TCP connections that one endpoint may have; undefined: any number. */
  readonly maxConnections?: number | undefined
  /**
   * New connections ask a peer that was silent for so long whether it still exists. 0: never;
   * undefined: after {@link keepAliveDelayMs}.
   */
  readonly keepAliveMs?: number | undefined
  /** How long endpoints may take for their first byte; undefined: as long as they like. */
  readonly firstByteMs?: number | undefined
}

interface EndpointBalance {
  readonly word: Balance
  /** The weights that are not 1, by `Target.key`. */
  readonly weights: readonly (readonly [key: string, weight: number])[]
}

/**
 * The difference between two choices of endpoints. The worker gets it instead of the whole
 * choice, so that its work depends on the size of the change and not of the list.
 */
export interface EndpointChanges extends Omit<EndpointChoice, 'endpoints'> {
  /** Keys of endpoints. */
  readonly removed: readonly string[]
  readonly added: readonly Target[]
}

/** An endpoint as a data path needs it. */
export interface Target {
  /** `ip:port` or `[ip]:port`. */
  readonly key: string
  readonly ip: string
  readonly port: number
  /** On this node. */
  readonly isLocal?: boolean
}

export interface DataPathDeps {
  /** Milliseconds that never jump back. */
  readonly now: () => number
  /** Like `Math.random`. */
  readonly random: () => number
  readonly descriptors: DescriptorBudget
  readonly passiveHealth: boolean
  /** Undefined where no client's address can be kept. */
  readonly sourceKeeper?: SourceKeeper | undefined
  /** Where Services answer on this node. An endpoint among these addresses is not dialed. */
  readonly ownFrontends?: Pick<OwnFrontends, 'has'>
  /** Called at the end of every connection; undefined without an access log. */
  readonly accessLog: ((entry: AccessEntry) => void) | undefined
  /** Rare events that an operator has to see, such as running out of descriptors. */
  readonly warn: (message: string) => void
}

/** One finished connection or UDP client. Its `endpoint` is a `Target.key`. */
export interface AccessEntry extends CarriedConnection {
  readonly attempts: number
}

/** How long the first, second, third and fourth attempt to reach an endpoint may take (US40). */
export const dialTimeoutsMs: readonly number[] = [250, 500, 1000, 2000]

/** How long a client waits for an endpoint to have fewer connections. */
export const roomPatienceMs = 1_000

/** A silent peer is asked after this time if its Service sets none. The original never asked. */
export const keepAliveDelayMs = 60_000

/** A peer is asked ten times, once a second. If it never answers, it exists no more. */
const keepAlivePatienceMs = 10_000

/**
 * Ends the connection also when the peer does not confirm sent bytes for so long. Use it only where
 * a Service asks for it: it also ends a peer that lives but takes no byte for so long.
 */
export function limitSilence(sockets: Sockets, fd: number, silenceMs: number): void {
  sockets.userTimeout(fd, silenceMs + keepAlivePatienceMs)
}

/** Keep-alive is turned on at this age. Most connections end sooner and save the calls. */
export const keepAliveStartMs = 15_000

/** Room for a burst of datagrams; the kernel caps it at net.core.rmem_max and wmem_max. */
export const socketBufferBytes = 1 << 20

/** UDP clients that one worker remembers; a new one replaces the one that is idle longest. */
export const maxUdpClients = 8192

/** The kernel caps it at net.core.somaxconn. */
export const listenBacklog = 4096

export function endpointChanges(
  before: readonly Target[],
  choice: EndpointChoice,
): EndpointChanges {
  const { endpoints, servingKeys, affinityMs, balance, proxyHeader, source } = choice
  const { resetAfterMs, maxConnections, keepAliveMs, firstByteMs } = choice
  // Most changes are in one place of the list; its head and tail are the same.
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
  // The choice may be a whole specification, of which the worker needs no more than this.
  const limits = { resetAfterMs, maxConnections, keepAliveMs, firstByteMs }
  return {
    ...{ removed: [...removed], added, servingKeys, affinityMs, balance },
    ...{ proxyHeader, source, ...limits },
  }
}
