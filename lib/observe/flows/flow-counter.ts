import type { FlowMessage } from '../../kernel/flow-message.js'
import type { FlowReader } from '../../kernel/flow-events.js'
import {
  addTo,
  EndpointCounts,
  setListed,
  type CountedService,
  type Listed,
} from './endpoint-counts.js'
import { outcomeOf, type FlowLine, type Sampler } from './line.js'
import { ServiceTable } from './service-table.js'
import {
  keyOf,
  type CarriedGrowth,
  type CountedPort,
  type EndpointGrowth,
  type EndpointName,
  type FlowNumbers,
  type PresentEndpoints,
  type ServedChanges,
  type ServedPort,
  type TurnedAway,
} from './messages.js'
import type { Refusal } from './refusals.js'
import { RecentIds } from './recent-ids.js'
import type { SavedCounts } from './saved-counts.js'

interface FlowCounterOptions {
  /** The time in ms since 1970, as in the kernel's own times. */
  readonly now: () => number
  /** The ms since such a time; undefined where that is not known. */
  readonly msSince: (startedAt: number) => number | undefined
  readonly sampler: Pick<Sampler, 'admits'>
  readonly line: (line: FlowLine) => void
  /** How many endpoints are counted one by one; further ones are counted together. */
  readonly maxEndpoints: number
}

/**
 * Counts the connections to Services. Events give their number, and the bytes and packets of those
 * that have ended. The kernel's table gives bytes and packets of the others, when somebody asks.
 */
export class FlowCounter implements FlowReader {
  readonly #options: FlowCounterOptions
  readonly #table = new ServiceTable((port: ServedPort) => this.#countedFor(port))
  /** By service port of both families. */
  readonly #services = new Map<string, CountedService>()
  readonly #recent: RecentIds
  #endpoints = 0
  /** Since the last report, a reading of the table has begun, or has ended with all of it. */
  #reading: 'begun' | 'whole' | undefined
  /** By id, while the table of the kernel is read, and what was missed when that began. */
  #listing: { readonly flows: Map<number, Listed>; readonly missed: object | undefined } | undefined
  /** What began in this time is counted from the table, unless an event told of it. */
  #missed: { readonly since: number; readonly until: number; failures: number } | undefined

  constructor(options: FlowCounterOptions) {
    this.#options = options
    this.#recent = new RecentIds(options.now)
  }

  change(changes: ServedChanges): void {
    for (const service of this.#table.change(changes)) {
      if (--service.families === 0) service.isGone = true
    }
  }

  opened(flow: FlowMessage): void {
    const service = this.#table.find(flow)
    if (!service || !this.#recent.add(flow.id)) return
    this.#endpointOf(service, flow).opened++
    if (this.#options.sampler.admits()) this.#options.line(this.#line(service, flow, 'opened'))
  }

  ended(flow: FlowMessage): void {
    this.#listing?.flows.delete(flow.id)
    // The reading under way may still tell of the connection, so its id stays known then.
    if (!this.#missed || !this.#listing) this.#recent.forget(flow.id)
    const service = this.#table.find(flow)
    if (!service) return
    addTo(this.#endpointOf(service, flow).ended, flow)
    if (!this.#options.sampler.admits()) return
    const { startedAt, bytesToEndpoint, bytesToClient } = flow
    const durationMs = startedAt > 0 ? this.#options.msSince(startedAt) : undefined
    this.#options.line({
      ...this.#line(service, flow, 'ended'),
      ...outcomeOf(flow),
      ...(durationMs === undefined ? {} : { durationMs: Math.round(durationMs) }),
      ...(flow.hasCounters ? { bytesToEndpoint, bytesToClient } : {}),
    })
  }

  /** A rule has refused a connection, or dropped it. */
  refused(refusal: Refusal): void {
    const service = this.#table.find(refusal)
    if (!service) return
    const { at, client, destination: address, reason: why } = refusal
    const isDropped = why !== ''
    service[isDropped ? 'dropped' : 'refused']++
    if (!this.#options.sampler.admits()) return
    const verdict = isDropped ? 'dropped' : 'no-endpoints'
    this.#options.line({
      ...{ at, event: 'ended', verdict, why },
      ...{ protocol: service.protocol, client, service: service.service, address, endpoint: '' },
    })
  }

  /** Events between this time and now may be lost. The next listing counts their connections. */
  missed(since = this.#recent.since): void {
    const known = this.#missed ?? { since, failures: 0 }
    this.#missed = { ...known, since: Math.min(since, known.since), until: this.#endOfNow() }
    this.#recent.hold(true)
  }

  get isMissing(): boolean {
    return this.#missed !== undefined
  }

  /** A reading of the kernel's table begins; each entry is given to `listed`. */
  beginListing(): void {
    this.#listing = { flows: new Map(), missed: this.#missed }
    this.#reading = 'begun'
  }

  listed(flow: FlowMessage): void {
    const service = flow.isTranslated ? this.#table.find(flow) : undefined
    if (!service) return
    const counts = this.#endpointOf(service, flow)
    if (this.#wasMissed(flow) && this.#recent.add(flow.id)) counts.opened++
    const { bytesToEndpoint, bytesToClient, packetsToEndpoint, packetsToClient } = flow
    const numbers = { bytesToEndpoint, bytesToClient, packetsToEndpoint, packetsToClient }
    this.#listing?.flows.set(flow.id, { counts, isOpen: flow.isOpen, ...numbers })
  }

  /** The reading ends. Every event that came meanwhile has been given to `ended`. */
  endListing(isWhole = true): void {
    const listing = this.#listing
    if (isWhole) setListed(this.#services.values(), listing?.flows.values() ?? [])
    this.#reading = isWhole && this.#reading ? 'whole' : undefined
    this.#listing = undefined
    // Of events that were lost meanwhile, this reading may have come too early.
    if (this.#missed !== listing?.missed) return
    if (!isWhole && this.#missed && ++this.#missed.failures < mostFailures) return
    this.#missed = undefined
    this.#recent.hold(false)
  }

  /** These are all endpoints that service ports have now. */
  present(all: readonly PresentEndpoints[]): void {
    for (const { endpoints, ...port } of all) {
      const present = new Set(endpoints)
      const known = this.#services.get(keyOf(port))?.endpoints.values() ?? []
      for (const counts of known) counts.isPresent = present.has(counts.endpoint)
    }
  }

  /** The numbers that have changed since the last call. */
  take(): Omit<FlowNumbers, 'overruns'> {
    const grown: EndpointGrowth[] = []
    const open: FlowNumbers['open'][number][] = []
    const gone = new Set<CountedService>()
    const left: FlowNumbers['left'][number][] = []
    const turnedAway: FlowNumbers['turnedAway'][number][] = []
    for (const [key, counted] of this.#services) {
      const { service, protocol, endpoints, refused, dropped, reported } = counted
      let isOpen = 0
      for (const [id, counts] of endpoints) {
        const { endpoint } = counts
        isOpen += counts.open
        const growth = counts.take()
        if (growth) grown.push({ service, protocol, endpoint, ...growth })
        else if (counts.isOver(this.#reading === 'whole')) {
          left.push({ service, protocol, endpoint })
          endpoints.delete(id)
          this.#endpoints--
        }
      }
      if (isOpen !== counted.reportedOpen) open.push({ service, protocol, open: isOpen })
      counted.reportedOpen = isOpen
      if (refused + dropped > reported.refused + reported.dropped) {
        const grown = { refused: refused - reported.refused, dropped: dropped - reported.dropped }
        turnedAway.push({ service, protocol, ...grown })
        counted.reported = { refused, dropped }
      }
      if (!counted.isGone || isOpen > 0) continue
      gone.add(counted)
      this.#services.delete(key)
      this.#endpoints -= endpoints.size
    }
    this.#table.drop(gone)
    this.#reading = undefined
    const forgotten = Array.from(gone, ({ service, protocol }) => ({ service, protocol }))
    return { grown, open, gone: forgotten, left, turnedAway }
  }

  /** The numbers with which the next process goes on counting. */
  save(): SavedCounts {
    const counts: SavedCounts['counts'][number][] = []
    const turnedAway: TurnedAway[] = []
    for (const { service, protocol, endpoints, refused, dropped } of this.#services.values()) {
      for (const { endpoint, opened, ended } of endpoints.values()) {
        counts.push({ service, protocol, endpoint, opened, ...ended })
      }
      if (refused + dropped > 0) turnedAway.push({ service, protocol, refused, dropped })
    }
    const heardUntil = this.#recent.since
    return { heardUntil, savedAt: this.#endOfNow(), recent: this.#recent.ids(), counts, turnedAway }
  }

  /** Goes on with the numbers of an earlier process. It is called before the first event. */
  resume(saved: SavedCounts): void {
    this.#recent.resume(saved.recent, saved.savedAt)
    this.add(saved)
  }

  /** Adds what others have counted. They count no more at the endpoints that `left`. */
  add({ counts, turnedAway }: CarriedGrowth, left: readonly EndpointName[] = []): void {
    for (const { service, protocol, endpoint, opened, ...ended } of counts) {
      const known = this.#serviceOf({ service, protocol })
      this.#named(known, endpoint, endpoint).add(opened, ended)
    }
    for (const { endpoint, ...port } of left) {
      this.#services.get(keyOf(port))?.endpoints.get(endpoint)?.leave()
    }
    for (const { refused, dropped, ...port } of turnedAway) {
      const known = this.#serviceOf(port)
      known.refused += refused
      known.dropped += dropped
    }
  }

  /** The clock has whole milliseconds, and the current one counts, too. */
  #endOfNow(): number {
    return this.#options.now() + 1
  }

  #wasMissed({ id, startedAt }: FlowMessage): boolean {
    const missed = this.#missed
    if (!missed || startedAt <= missed.since || startedAt > missed.until) return false
    return !this.#recent.isOfEarlier(id, startedAt)
  }

  #countedFor({ service, protocol }: ServedPort): CountedService {
    const counted = this.#serviceOf({ service, protocol })
    counted.families++
    counted.isGone = false
    return counted
  }

  #serviceOf(port: CountedPort): CountedService {
    const key = keyOf(port)
    let counted = this.#services.get(key)
    if (!counted) {
      // No family serves this service port yet. It is forgotten unless one will.
      const reported = { refused: 0, dropped: 0 }
      const nothing = { families: 0, ...reported, reported, endpoints: new Map() }
      counted = { ...port, isGone: true, ...nothing }
      this.#services.set(key, counted)
    }
    return counted
  }

  #endpointOf(service: CountedService, flow: FlowMessage): EndpointCounts {
    const key = flow.endpointKey
    return service.endpoints.get(key) ?? this.#named(service, flow.endpoint, key)
  }

  #named(service: CountedService, endpoint: string, key: string | number): EndpointCounts {
    const { endpoints } = service
    // Numbers of an earlier process have the text as key, until the endpoint is seen.
    const carried = endpoints.get(endpoint)
    if (carried) {
      endpoints.delete(endpoint)
      endpoints.set(key, carried)
      return carried
    }
    const isFull = this.#endpoints >= this.#options.maxEndpoints
    const known = isFull ? endpoints.get(other) : undefined
    if (known) return known
    const counts = new EndpointCounts(isFull ? other : endpoint)
    endpoints.set(isFull ? other : key, counts)
    this.#endpoints++
    return counts
  }

  #line(service: CountedService, flow: FlowMessage, event: FlowLine['event']): FlowLine {
    const { client, destination, endpoint } = flow
    return {
      ...{ at: this.#options.now(), event, verdict: 'forwarded', why: '' },
      ...{ protocol: service.protocol, client, service: service.service },
      ...{ address: destination, endpoint },
    }
  }
}

/** After so many readings that failed, what was missed is given up: until then all ids are kept. */
const mostFailures = 5

/** The name in the metrics for all endpoints beyond the bound. */
const other = 'other'
