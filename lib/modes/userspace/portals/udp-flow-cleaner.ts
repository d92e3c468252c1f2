import { Backlog, pause } from '../../../async.js'
import { messageOf } from '../../../errors.js'
import type { Conntrack, ServiceFlow } from '../../../kernel/conntrack.js'
import type { IpFamily } from '../../../state/ip.js'
import { Complaints } from '../../complaints.js'
import type { Log, Meter } from '../../mode.js'

/** By address that UDP clients send to (`ip:port`): the proxy ports that packets may go to. */
export type Redirections = ReadonlyMap<string, ReadonlySet<number>>

interface UdpFlowCleanerDeps {
  readonly log: Log
  readonly meter: Meter
  readonly openTable?: () => Promise<Pick<Conntrack, 'delete'>>
  /** The time until a deletion that failed is tried again. */
  readonly retryMs?: number
}

const defaultRetryMs = 10_000

/**
 * Deletes UDP flows that lead to a closed listener, or to no listener (US55, CT07). The kernel
 * sends every packet of a flow where its first one went. It does not look at changed rules while
 * packets keep coming. A sync waits for the deletion, but not for long: a large table takes time.
 */
export class UdpFlowCleaner {
  readonly #deps: UdpFlowCleanerDeps
  #table: Promise<Pick<Conntrack, 'delete'>> | undefined
  /** By family: all since the start, until the last `again`. */
  #sinceStart: Map<IpFamily, Redirections> | undefined = new Map()
  readonly #waiting = new Backlog<IpFamily, Redirections>((...each) => this.#work(...each))
  /** By family: what could not be deleted. */
  readonly #failed = new Map<IpFamily, Redirections>()
  readonly #complaints: Readonly<Record<IpFamily, Complaints>>
  #retry: NodeJS.Timeout | undefined

  constructor(deps: UdpFlowCleanerDeps) {
    this.#deps = deps
    this.#complaints = { IPv4: new Complaints(deps.log), IPv6: new Complaints(deps.log) }
  }

  /** Resolves when all flows are deleted, or after a short time; then the deletion goes on. */
  async clean(family: IpFamily, redirections: Redirections): Promise<void> {
    if (redirections.size === 0) return
    const before = this.#sinceStart?.get(family) ?? []
    this.#sinceStart?.set(family, new Map([...before, ...redirections]))
    this.#put(family, redirections)
    this.#putFailed()
    const waited = new AbortController()
    await Promise.race([this.idle(), pause(patienceMs, waited.signal)])
    waited.abort()
  }

  /** Until now, rules of another mode may have taken clients that came after a cleaning. */
  again(isLast: boolean): void {
    for (const [family, redirections] of this.#sinceStart ?? []) this.#put(family, redirections)
    if (isLast) this.#sinceStart = undefined
  }

  /**
   * Deletes the flows to proxy ports that no rule leads to any more and that are about to close. A
   * client that keeps its socket would otherwise be refused as long as it sends.
   */
  async forget(family: IpFamily, proxyPorts: ReadonlySet<number>): Promise<void> {
    await this.idle()
    if (proxyPorts.size === 0) return
    await this.#delete(
      family,
      (flow) => flow.answeredBy !== flow.destination && proxyPorts.has(portOf(flow)),
    )
  }

  /** Resolves once no deletion is running. */
  idle(): Promise<void> {
    return this.#waiting.idle()
  }

  /** What failed is tried again, too. What came later is newer. */
  #put(family: IpFamily, redirections: Redirections): void {
    const failed = this.#failed.get(family) ?? []
    this.#failed.delete(family)
    const waiting = this.#waiting.get(family) ?? []
    this.#waiting.put(family, new Map([...failed, ...waiting, ...redirections]))
  }

  #putFailed(): void {
    for (const family of this.#failed.keys()) this.#put(family, new Map())
  }

  async #work(family: IpFamily, redirections: Redirections): Promise<void> {
    if (await this.#delete(family, (flow) => leadsElsewhere(flow, redirections))) return
    this.#failed.set(family, new Map([...(this.#failed.get(family) ?? []), ...redirections]))
    this.#retry ??= setTimeout(() => {
      this.#retry = undefined
      this.#putFailed()
    }, this.#deps.retryMs ?? defaultRetryMs).unref()
  }

  /** After a failure the next call tries again. */
  async #open(): Promise<Pick<Conntrack, 'delete'>> {
    const { openTable = openConntrack } = this.#deps
    const opening = (this.#table ??= openTable())
    opening.catch(() => (this.#table = undefined))
    return opening
  }

  /** Resolves to whether it succeeded. */
  async #delete(family: IpFamily, isStale: (flow: ServiceFlow) => boolean): Promise<boolean> {
    const { log, meter } = this.#deps
    try {
      const table = await this.#open()
      const { deleted } = await table.delete(family, { protocol: 'UDP', isStale })
      meter.count('conntrack_reconciler_deleted_entries_total', { ip_family: family }, deleted)
      if (deleted > 0) log.info({ family, deleted }, 'deleted stale UDP flows')
      this.#complaints[family].settled()
      return true
    } catch (error) {
      const fields = { family, error: messageOf(error) }
      this.#complaints[family].warn(fields, 'stale UDP flows could not be deleted, will retry')
      return false
    }
  }
}

const patienceMs = 250

/** Imported late, because koffi does not load on every node. */
async function openConntrack(): Promise<Conntrack> {
  return new (await import('../../../kernel/conntrack.js')).Conntrack()
}

function leadsElsewhere(flow: ServiceFlow, redirections: Redirections): boolean {
  const ports = redirections.get(flow.destination)
  return ports !== undefined && !ports.has(portOf(flow))
}

function portOf({ answeredBy }: ServiceFlow): number {
  return Number(answeredBy.slice(answeredBy.lastIndexOf(':') + 1))
}
