import { Backlog, pause } from '../async.js'
import { messageOf } from '../errors.js'
import { destinationsOf, endpointKeys } from './stale-flows.js'
import type { DesiredService, DesiredState } from '../state/desired-state.js'
import type { Conntrack, ServiceFlow } from '../kernel/conntrack.js'
import type { IpFamily } from '../state/ip.js'
import type { Log } from '../modes/mode.js'

/** The protocols whose clients connect before they send anything. */
const connecting = ['TCP', 'SCTP'] as const

interface StuckClientsOptions {
  readonly table: () => Pick<Conntrack, 'delete'>
  readonly log: Log
  /** The open TCP connections of IPVS; each as `client destination`. */
  readonly openInIpvs: () => ReadonlySet<string>
  /** Milliseconds, for durations. */
  readonly now: () => number
}

/**
 * The part of the time in which the table of a family may be read, while Services change without a
 * pause. To read it takes the kernel 20 ms on a large node, however few entries there are.
 */
const share = 0.01
/** A busy machine needs long for everything. The next attempt of a client must not wait for that. */
const longestRestMs = 3_000

/** By `protocol ip:port`: the service port whose endpoints answer there. */
type Frontends = ReadonlyMap<string, DesiredService>

/**
 * Frees TCP and SCTP clients whose attempt to connect goes where nobody answers. The kernel sends
 * every repetition of their first packet to the same place, for two minutes and more. Either they
 * began before the rules of their Service existed, so they are not translated, or their endpoint
 * left before it answered. This class deletes the kernel's entry, so the next repetition is handled
 * like the first packet of a client.
 *
 * IPVS translates the packet in spite of an entry of before its rules, and the connection works
 * until the entry is gone, which is after 120 s if nobody deletes it. Then the kernel takes the
 * connection for a new one, masquerades it from another port, and the endpoint resets it. So the
 * kernel is told of a connection that is open already, and keeps its entry.
 */
export class StuckClients {
  readonly #options: StuckClientsOptions
  readonly #states = new Map<IpFamily, DesiredState>()
  /** Where clients may be stuck. No family waits while the other one rests. */
  readonly #waiting: Readonly<Record<IpFamily, Backlog<IpFamily, Frontends>>>
  /** Ends the rests between two readings. */
  readonly #leaving = new AbortController()

  constructor(options: StuckClientsOptions) {
    this.#options = options
    const { now } = options
    const backlog = () =>
      new Backlog<IpFamily, Frontends>(async (family, frontends) => {
        const began = now()
        await this.#free(family, frontends)
        await pause(Math.min((now() - began) / share, longestRestMs), this.#leaving.signal)
      })
    this.#waiting = { IPv4: backlog(), IPv6: backlog() }
  }

  /** The rules of this state are in the kernel now; until now none of the ports in `late` were. */
  applied(state: DesiredState, late: readonly string[] = []): void {
    const { family } = state
    const before = this.#states.get(family)
    this.#states.set(family, state)
    const frontends = changedFrontends(state, before, late)
    if (frontends.size === 0) return
    const waiting = this.#waiting[family]
    waiting.put(family, new Map([...(waiting.get(family) ?? []), ...frontends]))
  }

  /** For the end: resolves once no deletion is running. */
  async idle(): Promise<void> {
    this.#leaving.abort()
    await Promise.all(Object.values(this.#waiting).map((each) => each.idle()))
  }

  async #free(family: IpFamily, frontends: Frontends): Promise<void> {
    const { log, table, openInIpvs } = this.#options
    const answering = new Map<DesiredService, ReadonlySet<string>>()
    const answers = (service: DesiredService, endpoint: string) => {
      const keys = answering.get(service) ?? endpointKeys(service)
      answering.set(service, keys)
      return keys.has(endpoint)
    }
    // Read late, and only for a client that seems to be stuck.
    let open: ReadonlySet<string> | undefined
    const isOpen = (client: string, { destination }: ServiceFlow) =>
      (open ??= openInIpvs()).has(`${client} ${destination}`)
    const used = new Set([...frontends.values()].map(({ protocol }) => protocol))
    try {
      for (const protocol of connecting) {
        if (!used.has(protocol)) continue
        const { deleted } = await table().delete(family, {
          protocol,
          isUnanswered: true,
          isStale: ({ destination, answeredBy }) => {
            const service = frontends.get(`${protocol} ${destination}`)
            return service !== undefined && !answers(service, answeredBy)
          },
          ...(protocol === 'TCP' ? { isOpen } : {}),
        })
        const fields = { family, protocol, deleted }
        if (deleted > 0) log.info(fields, 'freed clients that nobody would have answered')
      }
    } catch (error) {
      const fields = { family, error: messageOf(error) }
      const warning =
        'clients that connected before the rules were written, or to an endpoint that left, must connect again'
      log.warn(fields, warning)
    }
  }
}

/** The frontends that are new or lost an endpoint. */
function changedFrontends(
  state: DesiredState,
  before: DesiredState | undefined,
  late: readonly string[],
): Frontends {
  const found = new Map<string, DesiredService>()
  const add = (service: DesiredService, was?: DesiredService) => {
    const { protocol } = service
    if (protocol === 'UDP') return
    // Without an endpoint not every client was refused: in iptables mode the node's own packets to an
    // external address left the node.
    const isOther = !was || !before || was.reachableEndpoints.length === 0 || hasLost(service, was)
    const old = isOther ? [] : destinationsOf(was, before.node.nodePorts.addresses)
    for (const destination of destinationsOf(service, state.node.nodePorts.addresses)) {
      if (!old.includes(destination)) found.set(`${protocol} ${destination}`, service)
    }
  }
  if (!before) for (const service of state.services.values()) add(service)
  else {
    const { added, changed } = state.services.since(before.services)
    for (const [, service] of added) add(service)
    for (const [, service, was] of changed) add(service, was)
    for (const key of late) {
      const service = state.services.get(key)
      if (service) add(service)
    }
  }
  return found
}

function hasLost(service: DesiredService, was: DesiredService): boolean {
  const now = endpointKeys(service)
  return [...endpointKeys(was)].some((key) => !now.has(key))
}
