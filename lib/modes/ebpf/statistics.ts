import { messageOf } from '../../errors.js'
import type { BpfMap } from '../../kernel/bpf/map.js'
import { hostPort } from '../../state/ip.js'
import type { Log, Meter } from '../mode.js'
import {
  countedTarget,
  protocols,
  statistics,
  statisticsKey,
  udpSocket,
  type StatisticsField,
} from './layout.js'
import { CountedLists, type countedLists, type ServiceLabels } from './counted-lists.js'
import type { SocketPlan } from './plan.js'

type ReadMap = Pick<BpfMap, 'entries' | 'delete'>

interface StatisticsDeps {
  /** The maps that programs use now. */
  readonly maps: () => Readonly<Record<'statistics' | 'udpSockets', ReadMap>>
  readonly lists: ReturnType<typeof countedLists>
  readonly meter: Meter
  readonly log: Log
}

type Numbers = Record<StatisticsField, number>

/** One entry of the map as it was read last. */
interface Counted {
  readonly key: Buffer
  readonly id: number
  readonly isTcp: boolean
  /** Empty for numbers of the service as a whole. */
  readonly endpoint: string
  labels: ServiceLabels
  numbers: Numbers
  isQuiet: boolean
}

/**
 * Turns what programs have counted into metrics, by service port and endpoint. It reads the maps
 * when metrics are asked for. An endpoint that left the plan keeps its entry until no connection is
 * open and nothing changes.
 */
export class Statistics {
  readonly #deps: StatisticsDeps
  readonly #counted = new Map<string, Counted>()
  #map: ReadMap | undefined
  #lists = new CountedLists([])
  /** By service port, as reported last. */
  #open: ReadonlyMap<string, Open> = new Map()

  constructor(deps: StatisticsDeps) {
    this.#deps = deps
  }

  /** Never throws: a page of metrics without these numbers is better than none. */
  read(plans: readonly SocketPlan[]): void {
    // Before the first sync nobody knows to which Service the numbers belong.
    if (plans.length === 0) return
    try {
      this.#read(plans)
    } catch (error) {
      const reason = messageOf(error)
      this.#deps.log.warn({ error: reason }, 'could not read what eBPF programs have counted')
    }
  }

  #read(plans: readonly SocketPlan[]): void {
    this.#lists = this.#deps.lists(plans)
    const { statistics: map, udpSockets } = this.#deps.maps()
    if (map !== this.#map) this.#beginAnew(map)
    for (const [key, value] of map.entries()) this.#take(key, numbersOf(value))
    this.#removeGone(map)
    this.#reportOpen(udpSockets)
  }

  /** A new map counts from zero. */
  #beginAnew(map: ReadMap): void {
    this.#map = map
    for (const each of this.#counted.values()) {
      each.numbers = numbersOf(Buffer.alloc(0))
      each.isQuiet = true
    }
  }

  #take(key: Buffer, now: Numbers): void {
    const text = key.toString('hex')
    let known = this.#counted.get(text)
    if (!known) {
      if (fields.every((field) => now[field] === 0)) return
      known = counterOf(key)
      this.#counted.set(text, known)
    }
    known.labels = this.#lists.labelsOf(known) ?? known.labels
    const before = known.numbers
    // Programs may take back a guess about the last byte of a connection. A metric never goes down.
    known.numbers = mapFields((field) => Math.max(before[field], now[field]))
    known.isQuiet = fields.every((field) => known.numbers[field] === before[field])
    if (!known.isQuiet) this.#count(known, before)
  }

  #count({ labels, endpoint, numbers }: Counted, before: Numbers): void {
    const ofEndpoint = { ...labels, endpoint }
    for (const { field, metric, direction, scale = 1 } of metrics) {
      const by = numbers[field] - before[field]
      if (by === 0) continue
      const all = direction === undefined ? ofEndpoint : { ...ofEndpoint, direction }
      this.#deps.meter.count(metric, all, by * scale)
    }
  }

  /** Removes entries that nobody uses and no plan has. They are not used again. */
  #removeGone(map: ReadMap): void {
    const gone = [...this.#counted].filter(([, each]) => this.#isGone(each))
    for (const [text, { key }] of gone) {
      map.delete(key)
      this.#counted.delete(text)
    }
    if (gone.length === 0) return
    const left = new Set(Array.from(this.#counted.values(), seriesOf))
    for (const [, each] of gone) {
      const { labels, endpoint } = each
      if (!left.has(seriesOf(each))) this.#deps.meter.forget({ ...labels, endpoint })
    }
  }

  #isGone(each: Counted): boolean {
    return each.isQuiet && openIn(each) === 0 && each.id !== 0 && !this.#lists.has(each)
  }

  /** A service port without an entry and without a UDP socket has no numbers any more. */
  #reportOpen(udpSockets: ReadMap): void {
    const sums = new Map<string, Open>()
    const add = (labels: ServiceLabels, open: number) => {
      const name = nameOf({ labels })
      const sum = sums.get(name) ?? { labels, open: 0 }
      sum.open += open
      sums.set(name, sum)
    }
    for (const each of this.#counted.values()) add(each.labels, openIn(each))
    for (const [, value] of udpSockets.entries()) {
      const labels = this.#lists.labelsOf({ id: value.readUInt32LE(udpSocket.id), endpoint: '' })
      if (labels) add(labels, 1)
    }
    for (const { labels, open } of sums.values()) {
      this.#deps.meter.gauge('service_active_connections', { ...labels }, open)
    }
    for (const [name, { labels }] of this.#open) {
      if (!sums.has(name)) this.#deps.meter.forget({ ...labels })
    }
    this.#open = sums
  }
}

interface Open {
  readonly labels: ServiceLabels
  open: number
}

interface Metric {
  readonly field: StatisticsField
  readonly metric: string
  readonly direction?: string
  readonly scale?: number
}

const metrics: readonly Metric[] = [
  { field: 'opened', metric: 'service_connections_total' },
  { field: 'failed', metric: 'service_dial_errors_total' },
  { field: 'refused', metric: 'service_refused_connections_total' },
  { field: 'bytesToEndpoint', metric: 'service_bytes_total', direction: 'to_endpoint' },
  { field: 'bytesToClient', metric: 'service_bytes_total', direction: 'to_client' },
  { field: 'retransmits', metric: 'service_retransmits_total' },
  { field: 'roundTripTime', metric: 'service_round_trip_seconds_total', scale: 1e-6 },
  { field: 'roundTrips', metric: 'service_round_trips_total' },
]

const { bytes: valueBytes, ...offsets } = statistics
const fields = Object.keys(offsets).filter(isField)

function isField(name: string): name is StatisticsField {
  return name in offsets
}

function mapFields(number: (field: StatisticsField) => number): Numbers {
  return {
    opened: number('opened'),
    closed: number('closed'),
    failed: number('failed'),
    refused: number('refused'),
    bytesToEndpoint: number('bytesToEndpoint'),
    bytesToClient: number('bytesToClient'),
    retransmits: number('retransmits'),
    roundTripTime: number('roundTripTime'),
    roundTrips: number('roundTrips'),
  }
}

/** The sum over all processors. The number of one processor may be negative. */
function numbersOf(values: Buffer): Numbers {
  return mapFields((field) => {
    let sum = 0
    for (let at = offsets[field]; at < values.length; at += valueBytes) {
      sum += values.readInt32LE(at + 4) * 2 ** 32 + values.readUInt32LE(at)
    }
    return sum
  })
}

function counterOf(key: Buffer): Counted {
  const target = countedTarget(key)
  const isTcp = key.readUInt8(statisticsKey.protocol) === protocols.TCP
  const isRest = target === undefined && key.readUInt32LE(statisticsKey.id) === 0
  return {
    key,
    id: key.readUInt32LE(statisticsKey.id),
    isTcp,
    endpoint: target ? hostPort(target.ip, target.port) : isRest ? other : '',
    labels: { service: other, protocol: isTcp ? 'TCP' : 'UDP' },
    numbers: numbersOf(Buffer.alloc(0)),
    isQuiet: false,
  }
}

/** The name in metrics of everything that has no entry of its own. */
const other = 'other'

/** How many connections are open. Programs do not see all UDP sockets close, so UDP has 0 here. */
const openIn = ({ isTcp, numbers }: Counted) =>
  isTcp ? Math.max(0, numbers.opened - numbers.closed) : 0

const nameOf = ({ labels: { service, protocol } }: Pick<Counted, 'labels'>) =>
  `${service}/${protocol}`

const seriesOf = (each: Pick<Counted, 'labels' | 'endpoint'>) => `${nameOf(each)} ${each.endpoint}`
