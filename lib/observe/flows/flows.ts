import type { Log, Meter } from '../../modes/mode.js'
import type { DesiredState } from '../../state/desired-state.js'
import { aborted } from '../../async.js'
import { FlowLog } from './flow-log.js'
import { FlowThread, type FlowReport } from './flow-thread.js'
import { type FlowLine, Sampler } from './line.js'
import { keyOf, type FlowNumbers, type PresentEndpoints } from './messages.js'
import { LastingMeter } from './lasting-meter.js'
import { ServedPorts } from './served-ports.js'

interface FlowsOptions {
  /**
   * With `counts` the connections that the kernel tracks are counted here. With `shows` they are
   * only shown, because something else counts them. With `told` the mode carries connections itself
   * and reports them.
   */
  readonly kernel: 'counts' | 'shows' | 'told'
  /** Whether NAT changes the destination of connections to Services. */
  readonly onlyTranslated: boolean
  readonly stateFile: string
  /** The group to which rules log what they refuse; undefined where they do not. */
  readonly refusalGroup: number | undefined
  readonly meter: Meter
  readonly log: Log
  /** The pod that has an address, as `namespace/name`; empty where it is not known. */
  readonly podAt: (ip: string) => string
}

/** The connections to Services on this node: their numbers, and the newest ones themselves. */
export class Flows {
  /** The lines that `kube-proxy flows` and the page show. */
  readonly lines: FlowLog
  readonly #options: FlowsOptions
  readonly #ports = new ServedPorts()
  readonly #thread: FlowThread | undefined
  readonly #sampler = new Sampler(toldPerSecond, () => performance.now())
  /** Service ports that rules have refused or dropped connections to. */
  readonly #turnedAway = new Set<string>()
  #isServing = false
  #reading: Promise<void> | undefined

  constructor(options: FlowsOptions) {
    this.#options = options
    // Fewer lines than milliseconds come, so a reader that waits for more than an earlier process had
    // gets all lines of this one.
    this.lines = new FlowLog(keptLines, options.podAt, Date.now())
    const { kernel, stateFile, onlyTranslated, refusalGroup } = options
    if (kernel === 'told' && refusalGroup === undefined) return
    const settings = {
      hearsConnections: kernel !== 'told',
      stateFile,
      onlyTranslated,
      refusalGroup,
      startedAt: Date.now(),
    }
    this.#thread = new FlowThread(settings, (report) => this.#reported(report))
  }

  started({ states }: { readonly states: readonly DesiredState[] }): void {
    if (!this.#thread) return
    const changes = this.#ports.changes(states)
    const isSame = [changes.set, changes.removed, changes.localAddresses].every(
      ({ length }) => length === 0,
    )
    if (!isSame || !this.#isServing) this.#thread.tell({ kind: 'services', ...changes })
    this.#isServing = true
  }

  /** The mode reports connections that it carries, and how many it leaves out of the report. */
  told(lines: readonly FlowLine[], leftOut: number): void {
    const kept = lines.filter(() => this.#sampler.admits())
    this.lines.add(kept, leftOut + this.#sampler.takeLeftOut())
  }

  /** The meter for a mode that carries connections itself, on top of this one. */
  meterOf(meter: Meter): Meter {
    const thread = this.#thread
    if (!thread) return meter
    return new LastingMeter(meter, (growth) => {
      // A thread that has ended keeps no numbers. They are shown nevertheless.
      if (thread.tell({ kind: 'carried', ...growth })) return
      this.#countTurnedAway({ turnedAway: growth.turnedAway, gone: [], overruns: 0 })
      this.#countGrown(growth.counts)
      for (const labels of growth.left) this.#options.meter.forget({ ...labels })
    })
  }

  /** Brings the metrics up to date; calls meanwhile wait for the same reading. */
  countTraffic(): Promise<void> {
    if (!this.#thread || !this.#isServing) return Promise.resolve()
    this.#reading ??= this.#thread
      .numbers(this.#present())
      .then((numbers) => {
        if (!numbers) return
        this.#countTurnedAway(numbers)
        if (this.#options.kernel !== 'shows') this.#count(numbers)
      })
      .finally(() => (this.#reading = undefined))
    return this.#reading
  }

  #present(): readonly PresentEndpoints[] {
    const present = this.#ports.takePresent()
    // A mode that carries connections itself tells which endpoints have left.
    return this.#options.kernel === 'told' ? [] : present
  }

  /** Runs until the signal. Then it saves the numbers for the next process. */
  async run(signal: AbortSignal): Promise<void> {
    await aborted(signal)
    await this.#thread?.leave()
  }

  /** Saves the last numbers, once the mode has ended. */
  async end(): Promise<void> {
    await this.#thread?.stop()
  }

  /** In every mode. It forgets only Services that it has counted: the mode may count others itself. */
  #countTurnedAway(numbers: Pick<FlowNumbers, 'turnedAway' | 'gone' | 'overruns'>): void {
    const { turnedAway, gone, overruns } = numbers
    const { meter } = this.#options
    for (const { refused, dropped, ...labels } of turnedAway) {
      if (refused > 0) meter.count('service_refused_connections_total', labels, refused)
      if (dropped > 0) meter.count('service_dropped_connections_total', labels, dropped)
      this.#turnedAway.add(keyOf(labels))
    }
    for (const labels of gone) {
      if (this.#turnedAway.delete(keyOf(labels))) meter.forget({ ...labels })
    }
    if (overruns > 0) meter.count('flow_events_lost_total', {}, overruns)
  }

  #count({ grown, open, gone, left }: FlowNumbers): void {
    const { meter, kernel } = this.#options
    this.#countGrown(grown)
    // A mode that carries connections knows which are open.
    for (const { open: value, ...labels } of kernel === 'counts' ? open : []) {
      meter.gauge('service_active_connections', labels, value)
    }
    for (const labels of [...gone, ...left]) meter.forget({ ...labels })
  }

  #countGrown(grown: FlowNumbers['grown']): void {
    const { meter } = this.#options
    for (const { service, protocol, endpoint, ...growth } of grown) {
      const labels = { service, protocol, endpoint }
      meter.count('service_connections_total', labels, growth.opened)
      for (const [metric, direction, by] of [
        ['service_bytes_total', 'to_endpoint', growth.bytesToEndpoint],
        ['service_bytes_total', 'to_client', growth.bytesToClient],
        ['service_packets_total', 'to_endpoint', growth.packetsToEndpoint],
        ['service_packets_total', 'to_client', growth.packetsToClient],
      ] as const) {
        if (by > 0) meter.count(metric, { ...labels, direction }, by)
      }
    }
  }

  #reported(report: FlowReport): void {
    const { log } = this.#options
    switch (report.kind) {
      case 'ready':
        log.info(
          { resumed: report.resumed, ring: report.hasRing },
          'connections to Services are counted',
        )
        break
      case 'failed':
        log.error({ error: report.reason }, 'connections to Services are not counted any more')
        break
      case 'warning':
        log.warn({ error: report.reason }, 'numbers of connections to Services may be incomplete')
        break
      case 'lines':
        this.lines.add(report.lines, report.leftOut)
    }
  }
}

const keptLines = 4096
const toldPerSecond = 200
