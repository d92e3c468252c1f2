import { messageOf } from '../../errors.js'
import type { Ipvs, ListedServer, TrafficStats } from '../../kernel/ipvs.js'
import { hostPort } from '../../state/ip.js'
import type { ModeContext } from '../mode.js'
import type { IpvsPlan } from './plan.js'
import { serverId, serverText } from './resource.js'

interface TrafficDeps {
  readonly ipvs: Pick<Ipvs, 'listServers' | 'listRealServers'>
  readonly context: Pick<ModeContext, 'meter' | 'log'>
}

/** The numbers of a virtual server at the last reading. */
interface Counted {
  readonly family: string
  readonly service: string
  readonly protocol: string
  total: TrafficStats
  active: number
  reals: ReadonlyMap<string, TrafficStats>
}

/**
 * Traffic by service port and endpoint, as the kernel counts it. The numbers of all addresses of a
 * service port are added. They are read when metrics are asked for. Real servers are read only if
 * their virtual server had traffic since the last time, because most of a large cluster are idle.
 */
export class Traffic {
  readonly #deps: TrafficDeps
  /** By {@link serverText}. Servers that had no traffic so far are left out. */
  readonly #counted = new Map<string, Counted>()
  #reading: Promise<void> | undefined

  constructor(deps: TrafficDeps) {
    this.#deps = deps
  }

  /**
   * Brings the metrics up to date. Never throws. A call during a reading waits for this reading.
   */
  read(plans: readonly IpvsPlan[]): Promise<void> {
    this.#reading ??= this.#readAll(plans)
      .catch((error: unknown) => {
        const reason = messageOf(error)
        this.#deps.context.log.warn({ error: reason }, 'could not read the traffic of ipvs servers')
      })
      .finally(() => (this.#reading = undefined))
    return this.#reading
  }

  async #readAll(plans: readonly IpvsPlan[]): Promise<void> {
    for (const plan of plans) {
      const listed = await this.#deps.ipvs.listServers(plan.family)
      const before = [...this.#counted]
      const present = new Set<string>()
      for (const server of listed) {
        present.add(serverText(server))
        await this.#readServer(plan, server)
      }
      this.#forgetGone(plan.family, before, present)
    }
    this.#reportActive()
  }

  async #readServer(plan: IpvsPlan, server: ListedServer): Promise<void> {
    const owner = plan.requests.get(serverId(server))?.[0]?.owner
    if (owner === undefined) return
    const text = serverText(server)
    const slash = owner.lastIndexOf('/')
    const service = owner.slice(0, slash)
    const protocol = owner.slice(slash + 1)
    let counted = this.#counted.get(text)
    const isOther = counted !== undefined && counted.service !== service
    const isIdle = isSame(counted?.total ?? none, server.stats)
    if (isIdle && !isOther && (counted?.active ?? 0) === 0) return
    if (!counted || isOther) {
      // What was counted for another service port is not counted again.
      const known = counted?.reals ?? new Map<string, TrafficStats>()
      counted = { family: plan.family, service, protocol, total: none, active: 0, reals: known }
      this.#counted.set(text, counted)
    }
    const reals = new Map<string, TrafficStats>()
    counted.active = 0
    for (const real of await this.#deps.ipvs.listRealServers(server)) {
      const endpoint = hostPort(real.ip, real.port)
      reals.set(endpoint, real.stats)
      // The kernel counts UDP as inactive, because it has no states.
      counted.active += protocol === 'UDP' ? real.inactiveConnections : real.activeConnections
      this.#count({ service, protocol, endpoint }, counted.reals.get(endpoint), real.stats)
    }
    counted.total = server.stats
    // Real servers that left are kept: if one comes back, the kernel may go on with its old
    // numbers.
    const gone = [...counted.reals].filter(([endpoint]) => !reals.has(endpoint))
    counted.reals = new Map([...gone.slice(-reals.size - maxGone), ...reals])
  }

  #count(
    labels: Readonly<Record<string, string>>,
    before: TrafficStats | undefined,
    now: TrafficStats,
  ): void {
    // A real server that was removed and came back counts from zero again.
    const base = before && !isLess(now, before) ? before : none
    const { meter } = this.#deps.context
    const count = (name: string, field: keyof TrafficStats, direction?: string) => {
      const by = Number(now[field] - base[field])
      if (by > 0) meter.count(name, direction === undefined ? labels : { ...labels, direction }, by)
    }
    count('service_connections_total', 'connections')
    count('service_packets_total', 'inPackets', 'to_endpoint')
    count('service_packets_total', 'outPackets', 'to_client')
    count('service_bytes_total', 'inBytes', 'to_endpoint')
    count('service_bytes_total', 'outBytes', 'to_client')
  }

  /** Removes the numbers of a service port whose last virtual server is gone, or is another's. */
  #forgetGone(
    family: string,
    before: readonly (readonly [string, Counted])[],
    present: ReadonlySet<string>,
  ): void {
    const all = before.filter(([, counted]) => counted.family === family)
    for (const [text] of all) if (!present.has(text)) this.#counted.delete(text)
    const gone = all.filter(([text, counted]) => this.#counted.get(text) !== counted)
    if (gone.length === 0) return
    const left = new Set([...this.#counted.values()].map(nameOf))
    for (const [, counted] of gone) {
      const { service, protocol } = counted
      if (!left.has(nameOf(counted))) this.#deps.context.meter.forget({ service, protocol })
    }
  }

  #reportActive(): void {
    const sums = new Map<string, { service: string; protocol: string; active: number }>()
    for (const counted of this.#counted.values()) {
      const { service, protocol, active } = counted
      const sum = sums.get(nameOf(counted)) ?? { service, protocol, active: 0 }
      sum.active += active
      sums.set(nameOf(counted), sum)
    }
    for (const { active, ...labels } of sums.values()) {
      this.#deps.context.meter.gauge('service_active_connections', labels, active)
    }
  }
}

/** How many more real servers that left are remembered than there are real servers. */
const maxGone = 16

const none: TrafficStats = {
  connections: 0n,
  inPackets: 0n,
  outPackets: 0n,
  inBytes: 0n,
  outBytes: 0n,
}

const fields = ['connections', 'inPackets', 'outPackets', 'inBytes', 'outBytes'] as const

const isSame = (a: TrafficStats, b: TrafficStats) => fields.every((field) => a[field] === b[field])

const isLess = (a: TrafficStats, b: TrafficStats) => fields.some((field) => a[field] < b[field])

const nameOf = ({ service, protocol }: Counted) => `${service}/${protocol}`
