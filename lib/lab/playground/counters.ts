import { splitArguments } from '../../kernel/iptables.js'
import type { CountersView, HopView, PathView } from '../../page/view.js'
import type { GaugeAnswer } from './node-gauge.js'

/** Which Service is counted: its port name `namespace/name:port` and where it is asked. */
export interface Counted {
  readonly mode: string
  /** `namespace/name` */
  readonly service: string
  readonly path: PathView
  /** Addresses at which the Service answers. */
  readonly addresses: readonly string[]
}

/** What the kernel or the proxy has counted, as far as this mode lets anybody count. Pure. */
export function countersOf(counted: Counted, raw: GaugeAnswer): CountersView {
  const { mode, path } = counted
  switch (mode) {
    case 'iptables':
      return {
        rules: ruleCounts(path, raw.iptables ?? '', mode),
        endpoints: dnatCounts(counted.service, raw.iptables ?? ''),
        note: 'Packets that matched each rule, as iptables counts them. Rules of table nat see the first packet of a connection only.',
      }
    case 'userspace':
      return {
        rules: ruleCounts(path, raw.iptables ?? '', mode),
        endpoints: metricCounts(counted.service, raw.metrics ?? ''),
        note: `Connections by endpoint are exact: the proxy makes them itself.${raw.iptables === undefined ? '' : ' Rules: as iptables counts them.'}`,
      }
    case 'ipvs':
      return {
        rules: {},
        endpoints: serverCounts(counted.addresses, raw.ipvs ?? ''),
        note: 'Connections since a server was added, as IPVS counts them.',
      }
    default:
      return {
        rules: {},
        endpoints: trackedCounts(counted.addresses, raw.conntrack ?? ''),
        note: 'Rules of nftables mode carry no counters. These are the connections that the kernel tracks, which it forgets about two minutes after they end.',
      }
  }
}

export function counterKey({ where, rule }: HopView): string {
  return `${where} ${rule}`
}

function ruleCounts(path: PathView, saved: string, mode: string): Record<string, number> {
  const packets = savedPackets(saved, mode)
  const counts: Record<string, number> = {}
  for (const hop of [...path.shared, ...path.ways.flatMap((way) => way.hops)]) {
    if (hop.rule === '') continue
    const [table = ''] = hop.where.split(' ')
    const chain = hop.where.split(/ > | /).at(-1) ?? ''
    const found = packets.get(`${table} ${chain} ${signature(hop.rule, mode)}`)
    if (found !== undefined) counts[counterKey(hop)] = found
  }
  return counts
}

const savedRule = /^\[(\d+):\d+\] -A (\S+) (.*)$/

function savedPackets(saved: string, mode: string): ReadonlyMap<string, number> {
  const packets = new Map<string, number>()
  let table = ''
  for (const line of saved.split('\n')) {
    if (line.startsWith('*')) table = line.slice(1)
    const [, count, chain = '', text = ''] = savedRule.exec(line) ?? []
    if (count === undefined) continue
    packets.set(`${table} ${chain} ${signature(text, mode)}`, Number(count))
  }
  return packets
}

/** Options that the kernel's tools add, or write in words of their own. */
const said = new Set(['--reject-with', '--mask', '--or-mark', '--xor-mark', '--set-xmark', '-m'])

/** The same for a rule as it was written and as it is printed. */
function signature(rule: string, mode: string): string {
  const args = splitArguments(rule)
  const parts: string[] = []
  for (let index = 0; index < args.length; index++) {
    const option = args[index] ?? ''
    const value = args[index + 1] ?? ''
    if (said.has(option)) index++
    else if (option === '--rsource' || option === '--random-fully') continue
    else if (option === '--probability') {
      parts.push(`p=${Number(value).toFixed(5)}`)
      index++
    } else if (mode === 'userspace' && /^--to-(ports|destination)$/.test(option)) index++
    else
      parts.push(
        option
          .replace(/\/(32|128)$/, '')
          .split(',')
          .sort()
          .join(','),
      )
  }
  return parts.sort().join(' ')
}

/** Connections that were given to each endpoint by its DNAT rule. */
function dnatCounts(service: string, saved: string): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const line of saved.split('\n')) {
    const [, packets, , text = ''] = savedRule.exec(line) ?? []
    const endpoint = /--to-destination (\S+)/.exec(text)?.[1]
    const owner = /--comment "([^": ]+)(?::[^ "]*)? -> /.exec(text)?.[1]
    if (packets === undefined || endpoint === undefined || owner !== service) continue
    counts[endpoint] = (counts[endpoint] ?? 0) + Number(packets)
  }
  return counts
}

function metricCounts(service: string, metrics: string): Record<string, number> {
  const counts: Record<string, number> = {}
  const sample = /^kubeproxy_service_connections_total\{([^}]*)\} (\d+)$/
  for (const line of metrics.split('\n')) {
    const [, labels = '', value] = sample.exec(line) ?? []
    const owner = /service="([^":]+)/.exec(labels)?.[1]
    const endpoint = /endpoint="([^"]+)"/.exec(labels)?.[1]
    if (value !== undefined && owner === service && endpoint !== undefined) {
      counts[endpoint] = Number(value)
    }
  }
  return counts
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

/** Entries of the connection table whose first packet went to the Service, by who answers. */
function trackedCounts(addresses: readonly string[], table: string): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const line of table.split('\n')) {
    const fields = [...line.matchAll(/\b(src|dst|sport|dport)=(\S+)/g)].map(([, , value]) => value)
    // src dst sport dport of the way there, then of the way back.
    const [, destination, , port, answering, , answeringPort] = fields
    if (destination === undefined || !addresses.includes(`${destination}:${port}`)) continue
    const endpoint = `${answering}:${answeringPort}`
    counts[endpoint] = (counts[endpoint] ?? 0) + 1
  }
  return counts
}
