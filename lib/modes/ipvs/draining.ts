import type { Turns } from '../../async.js'
import type { Ipvs, IpvsChange, ListedRealServer, ServerAddress } from '../../kernel/ipvs.js'
import type { IpFamily } from '../../state/ip.js'
import type { RealChange, RemovedReal } from './changes.js'
import { realsOf } from './kernel-view.js'
import { weightless } from './names.js'
import { serverText } from './resource.js'
import type { IpvsSettings } from './settings.js'

/** A real server with weight 0 that still has connections. */
interface Draining extends RealChange {
  readonly since: number
}

interface DrainingDeps {
  readonly ipvs: Pick<Ipvs, 'listRealServers' | 'change'>
  readonly now: () => number
  readonly settings: () => Pick<IpvsSettings, 'gracePeriodMs'>
}

/**
 * Graceful termination (IP26-IP28). A removed TCP real server gets weight 0, so no new connections.
 * It is deleted when its last connection has ended. UDP and SCTP real servers are deleted at once:
 * their flows have no end to wait for. A real server that returns gets its weight back and keeps
 * its connections; upstream deletes it first.
 */
export class DrainingServers {
  readonly #deps: DrainingDeps
  readonly #entries = new Map<string, Draining>()

  constructor(deps: DrainingDeps) {
    this.#deps = deps
  }

  get isActive(): boolean {
    return this.#entries.size > 0
  }

  count(family: IpFamily): number {
    let count = 0
    for (const { server } of this.#entries.values()) if (server.family === family) count++
    return count
  }

  has(change: Pick<RealChange, 'server' | 'key'>): boolean {
    return this.#entries.has(idOf(change))
  }

  /** Stops draining: the server serves again, or is gone. */
  forget(change: Pick<RealChange, 'server' | 'key'>): void {
    this.#entries.delete(idOf(change))
  }

  /** The changes that end all draining of a virtual server. */
  end(server: ServerAddress): readonly IpvsChange[] {
    const ending = [...this.#entries.values()].filter(
      (entry) => serverText(entry.server) === serverText(server),
    )
    for (const entry of ending) this.forget(entry)
    return ending.map(({ real }) => ({ do: 'delete-real', server, real }))
  }

  /** The changes that take real servers out of service: now, or after their connections end. */
  async retire(removed: readonly RemovedReal[]): Promise<readonly IpvsChange[]> {
    const changes: IpvsChange[] = []
    for (const [, group] of groupByServer(removed)) {
      const first = group[0]?.server
      const mayDrain = first?.protocol === 'TCP' && first.scheduler !== weightless
      const listed = mayDrain ? await realsOf(this.#deps.ipvs, first) : undefined
      for (const change of group) {
        const { server, key, real } = change
        if (!isBusy(listed?.get(key))) {
          this.forget(change)
          changes.push({ do: 'delete-real', server, real })
        } else {
          if (!this.has(change)) {
            this.#entries.set(idOf(change), { ...change, since: this.#deps.now() })
          }
          if (real.weight !== 0) {
            changes.push({ do: 'set-real', server, real: { ...real, weight: 0 } })
          }
        }
      }
    }
    return changes
  }

  /**
   * Deletes servers whose connections have ended, or whose time is over. Each virtual server has its
   * own turn between syncs, so that a change does not wait for all of them.
   */
  async sweep(turns: Pick<Turns, 'take'>): Promise<void> {
    const failures: unknown[] = []
    for (const [, group] of groupByServer([...this.#entries.values()])) {
      await turns
        .take(() => this.#sweepGroup(group))
        .catch((error: unknown) => failures.push(error))
    }
    if (failures.length > 0) throw failures[0]
  }

  async #sweepGroup(group: readonly Draining[]): Promise<void> {
    const [first] = group
    if (!first) return
    const listed = await realsOf(this.#deps.ipvs, first.server)
    const done: IpvsChange[] = []
    for (const entry of group) {
      // The server may be in use again since the sweep began.
      if (this.#entries.get(idOf(entry)) !== entry) continue
      const now = listed.get(entry.key)
      // Its weight was not written, or somebody else gave it one. The next comparison finds it, and
      // its time goes on.
      if (now !== undefined && now.weight !== 0) continue
      if (isBusy(now) && !this.#isOver(entry)) continue
      this.forget(entry)
      done.push({ do: 'delete-real', server: entry.server, real: entry.real })
    }
    // A server that cannot be deleted is gone already, or the next verification finds it.
    await this.#deps.ipvs.change(done)
  }

  #isOver({ since }: Draining): boolean {
    const { gracePeriodMs } = this.#deps.settings()
    return gracePeriodMs > 0 && this.#deps.now() - since >= gracePeriodMs
  }
}

function isBusy(real: ListedRealServer | undefined): boolean {
  return real !== undefined && real.activeConnections + real.inactiveConnections > 0
}

function groupByServer<T extends RealChange>(changes: readonly T[]): ReadonlyMap<string, T[]> {
  const groups = new Map<string, T[]>()
  for (const change of changes) {
    const id = serverText(change.server)
    const group = groups.get(id)
    if (group) group.push(change)
    else groups.set(id, [change])
  }
  return groups
}

const idOf = ({ server, key }: Pick<RealChange, 'server' | 'key'>): string =>
  `${serverText(server)} ${key}`
