import { chainIn } from '../../kernel/place.js'
import { commentOf, parseCounters, parseRule } from '../../kernel/iptables.js'
import { counterOf } from '../../page/path-view.js'
import { connectionsIn } from '../../inspect/top/daemon-numbers.js'
import type { CountersView, PathView } from '../../page/view.js'
import { hostPort } from '../../state/ip.js'
import type { TrackedFlow } from '../../kernel/flow-message.js'
import type { GaugeAnswer } from './node-gauge.js'

/** The Service that is counted, and what its numbers are found by. */
export interface Counted {
  readonly mode: string
  /** `namespace/name` */
  readonly service: string
  readonly path: PathView
  /** Addresses at which the Service answers. */
  readonly addresses: readonly string[]
  /** Addresses of the node: kube-proxy itself took what ends there, in userspace mode. */
  readonly node: readonly string[]
}

/** Source ports of the page's own connections, for modes that list single connections. */
export const hiddenPorts = { first: 39_000, last: 39_999 } as const

/**
 * Subtracts the page's own connections from the numbers of the kernel. A rule or a server that is
 * written anew counts from zero, so earlier connections are no longer in its number.
 */
export class HiddenCounts {
  readonly #hidden = new Map<string, number>()
  /** Since the last reading. */
  readonly #fresh = new Map<string, number>()
  #last: Readonly<Record<string, number>> = {}

  /** Notes the counters that one of our own connections has passed. */
  passed(keys: Iterable<string>): void {
    for (const key of keys) this.#fresh.set(key, (this.#fresh.get(key) ?? 0) + 1)
  }

  /**
   * The numbers without our own connections. No such connection may be open while they are read.
   * Numbers that are reported may come after the connections that they count.
   */
  without(
    counts: Readonly<Record<string, number>>,
    { areReported = false } = {},
  ): Record<string, number> {
    const shown = Object.entries(counts).map(([key, count]) => {
      const fresh = this.#fresh.get(key) ?? 0
      const isNew = count < (this.#last[key] ?? 0) + (areReported ? 0 : fresh)
      const passed = fresh + (isNew ? 0 : (this.#hidden.get(key) ?? 0))
      // What passed before the rule was written anew is not in its number.
      const hidden = areReported ? passed : Math.min(count, passed)
      this.#hidden.set(key, hidden)
      this.#fresh.delete(key)
      return [key, Math.max(0, count - hidden)] as const
    })
    this.#last = { ...this.#last, ...counts }
    return Object.fromEntries(shown)
  }
}

/**
 * The numbers that the kernel or the proxy counts in this mode, without the page's own connections.
 * What a mode does not count is missing in the answer, and adds nothing.
 */
export function countersOf(
  counted: Counted,
  raw: GaugeAnswer,
  hidden = new HiddenCounts(),
): CountersView {
  const { mode, path, service, addresses } = counted
  if (raw.simulated) {
    return {
      rules: ruleCounts(path, hidden.without(raw.simulated.rules)),
      endpoints: hidden.without(raw.simulated.endpoints),
      note: 'The connections of this simulation that met each rule and each endpoint.',
    }
  }
  const packets = hidden.without(packetsByRule(raw.iptables ?? ''))
  const byProxy = metricCounts(service, raw.metrics ?? '')
  const byServer = serverCounts(addresses, raw.ipvs ?? '')
  const tracked = trackedCounts(counted, raw.tracked ?? [])
  return {
    rules: ruleCounts(path, packets),
    endpoints:
      mode === 'iptables'
        ? dnatCounts(service, raw.iptables ?? '', packets)
        : tally([
            ...Object.entries(hidden.without(byProxy, { areReported: true })),
            ...Object.entries(hidden.without(byServer)),
            ...tracked,
          ]),
    note:
      mode === 'userspace' && raw.iptables !== undefined
        ? `${notes['userspace']} Rules: as iptables counts them.`
        : (notes[mode] ?? ''),
  }
}

const notes: Readonly<Record<string, string>> = {
  iptables:
    'Packets that matched each rule, as iptables counts them. Rules of table nat see the first packet of a connection only.',
  userspace: 'Connections by endpoint are exact: the proxy makes them itself.',
  ipvs: 'Connections since a server was added, as IPVS counts them.',
  ebpf: 'Connections that were translated at their socket, as the programs count them, and those of others that the kernel tracks.',
  nftables:
    'Rules of nftables mode have no counters. These are the connections that the kernel tracks, which it forgets about two minutes after they end.',
}

/** The numbers by key; those of one key are added up. */
function tally(pairs: Iterable<readonly [key: string, count: number]>): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const [key, count] of pairs) counts[key] = (counts[key] ?? 0) + count
  return counts
}

type RuleCounter = ReturnType<typeof parseCounters>[number]
type Packets = Readonly<Record<string, number>>

function keyOf({ table, chain, rule }: RuleCounter): string {
  return counterOf({ place: chainIn(table, chain), text: rule })
}

function packetsByRule(saved: string): Packets {
  return Object.fromEntries(parseCounters(saved).map((each) => [keyOf(each), each.packets]))
}

function ruleCounts(path: PathView, packets: Packets): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const { counter } of [...path.shared, ...path.ways.flatMap((way) => way.hops)]) {
    const found = packets[counter]
    if (found !== undefined) counts[counter] = found
  }
  return counts
}

/** Connections that were given to each endpoint by its DNAT rule. */
function dnatCounts(service: string, saved: string, packets: Packets): Record<string, number> {
  const given = parseCounters(saved).flatMap((each) => {
    const spec = parseRule(each.rule)
    const [option, endpoint] = spec.jumpArgs ?? []
    const [portName = '', arrow] = commentOf(spec).split(' ')
    const isOwn = arrow === '->' && portName.split(':')[0] === service
    if (option !== '--to-destination' || endpoint === undefined || !isOwn) return []
    return [[endpoint, packets[keyOf(each)] ?? 0] as const]
  })
  return tally(given)
}

function metricCounts(service: string, metrics: string): Record<string, number> {
  const own = connectionsIn(metrics).filter((each) => each.service.split(':')[0] === service)
  // Several ports of a Service may lead to one endpoint.
  return tally(own.map(({ endpoint, count }) => [endpoint, count]))
}

function serverCounts(addresses: readonly string[], listing: string): Record<string, number> {
  const counts: Record<string, number> = {}
  let isOurs = false
  for (const line of listing.split('\n')) {
    const [, address] = /^(?:TCP|UDP|SCTP) +(\S+) /.exec(line) ?? []
    if (address !== undefined) isOurs = addresses.includes(address)
    const [, endpoint, connections] = /^ +-> (\S+) +(\d+[KM]?) /.exec(line) ?? []
    if (isOurs && endpoint !== undefined) {
      counts[endpoint] = (counts[endpoint] ?? 0) + Number.parseInt(connections ?? '0', 10)
    }
  }
  return counts
}

/** Entries of the connection table whose first packet went to the Service, by endpoint. */
function trackedCounts(
  { addresses, node }: Pick<Counted, 'addresses' | 'node'>,
  flows: readonly TrackedFlow[],
): readonly (readonly [endpoint: string, count: 1])[] {
  const own = flows.filter(
    ({ source, destination, answeredBy }) =>
      !(source.port >= hiddenPorts.first && source.port <= hiddenPorts.last) &&
      addresses.includes(hostPort(destination.ip, destination.port)) &&
      !node.includes(answeredBy.ip),
  )
  return own.map(({ answeredBy: { ip, port } }) => [hostPort(ip, port), 1])
}
