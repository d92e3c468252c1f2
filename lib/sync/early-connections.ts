import { setTimeout as delay } from 'node:timers/promises'
import { Backlog } from '../async.js'
import { messageOf } from '../errors.js'
import { destinationsOf } from './stale-flows.js'
import type { DesiredService, DesiredState } from '../state/desired-state.js'
import type { FlowCleanup, ServiceFlow } from '../kernel/conntrack.js'
import type { IpFamily } from '../state/ip.js'
import type { Log } from '../modes/mode.js'

/** The part of kernel/conntrack.ts that is used here. */
interface UnansweredFlowTable {
  deleteUnanswered(
    family: IpFamily,
    protocol: (typeof connecting)[number],
    isWanted: (flow: ServiceFlow) => boolean,
  ): Promise<FlowCleanup>
}

/** The protocols whose clients connect before they send anything. */
const connecting = ['TCP', 'SCTP'] as const

interface EarlyConnectionsOptions {
  /** Called when the table is first needed. */
  readonly openTable: () => UnansweredFlowTable
  readonly log: Log
  /** Milliseconds, for durations. */
  readonly now: () => number
}

/** The part of the time in which the table may be read, while Services come without a pause. */
const share = 0.1

/**
 * Frees TCP and SCTP clients that began to connect before the rules of their Service existed. The kernel has
 * an entry that their connection is not translated, so every repetition of the first packet goes
 * the same wrong way. IPVS translates the packet in spite of the entry, and the connection works
 * until the entry expires after 120 s. Then the kernel takes the connection for a new one,
 * masquerades it from another port, and the endpoint resets it. This class deletes the entry, so
 * the next repetition is handled like the first packet of a client.
 */
export class EarlyConnections {
  readonly #options: EarlyConnectionsOptions
  readonly #states = new Map<IpFamily, DesiredState>()
  /** By family: what is to be deleted, each as `protocol ip:port`. */
  readonly #waiting: Backlog<IpFamily, ReadonlySet<string>>
  #table: UnansweredFlowTable | undefined

  constructor(options: EarlyConnectionsOptions) {
    this.#options = options
    const { now } = options
    this.#waiting = new Backlog(async (family, destinations) => {
      const began = now()
      await this.#delete(family, destinations)
      if (!this.#waiting.isEmpty) await delay((now() - began) / share)
    })
  }

  /** The rules of this state are in the kernel now; until now none of the ports in `late` were. */
  applied(state: DesiredState, late: readonly string[] = []): void {
    const { family } = state
    const before = this.#states.get(family)
    this.#states.set(family, state)
    const destinations = newDestinations(state, before, late)
    if (destinations.length === 0) return
    const waiting = this.#waiting.get(family) ?? []
    this.#waiting.put(family, new Set([...waiting, ...destinations]))
  }

  /** Resolves once no deletion is running. */
  idle(): Promise<void> {
    return this.#waiting.idle()
  }

  async #delete(family: IpFamily, destinations: ReadonlySet<string>): Promise<void> {
    const { log, openTable } = this.#options
    try {
      this.#table ??= openTable()
      for (const protocol of connecting) {
        if (![...destinations].some((each) => each.startsWith(protocol))) continue
        const { deleted } = await this.#table.deleteUnanswered(
          family,
          protocol,
          ({ destination, answeredBy }) =>
            answeredBy === destination && destinations.has(`${protocol} ${destination}`),
        )
        const fields = { family, protocol, deleted }
        if (deleted > 0) log.info(fields, 'freed clients that connected too early')
      }
    } catch (error) {
      const fields = { family, error: messageOf(error) }
      log.warn(fields, 'clients that connected before the rules were written must connect again')
    }
  }
}

/** Every `protocol ip:port` that reaches a service port now, and did not before. */
function newDestinations(
  state: DesiredState,
  before: DesiredState | undefined,
  late: readonly string[],
): string[] {
  const found: string[] = []
  const add = (service: DesiredService, was?: DesiredService) => {
    const { protocol } = service
    if (protocol === 'UDP') return
    // Without an endpoint not every client is refused: in iptables mode the node's own packets to an
    // external address leave the node.
    const led = was && was.reachableEndpoints.length > 0
    const old = led && before ? destinationsOf(was, before.node.nodePorts.addresses) : []
    const all = destinationsOf(service, state.node.nodePorts.addresses)
    const fresh = all.filter((destination) => !old.includes(destination))
    found.push(...fresh.map((destination) => `${protocol} ${destination}`))
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
