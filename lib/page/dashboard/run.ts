import { pause } from '../../async.js'
import { dashboardAccess, type DashboardFiles } from './access.js'
import { DashboardSource } from './source.js'
import { frontends, isTranslated } from '../../inspect/top/rows.js'
import { serviceAt } from '../../inspect/explain/question.js'
import { hostPort, type HostPort } from '../../state/ip.js'
import { messageOf } from '../../errors.js'
import { PodNames } from '../../sources/pod-names.js'
import { PageServer } from '../server.js'
import type { AnswerCount } from '../view.js'
import type { DesiredService, DesiredState } from '../../state/desired-state.js'
import type { FlowLog } from '../../observe/flows/flow-log.js'
import type { ChosenDeps } from './chosen.js'
import { countsConnections, type ModeName } from '../../config/config.js'
import type { Log } from '../../modes/mode.js'
import type { Metrics } from '../../observe/metrics.js'
import type { SyncListener } from '../../sync/sync-round.js'

export interface DashboardOptions {
  readonly address: HostPort
  readonly files: DashboardFiles
  readonly mode: ModeName
  readonly current: ChosenDeps['current']
  readonly nodeName: string
  readonly metrics: Metrics
  /** The stream of connections; undefined when they are not followed. */
  readonly flows: FlowLog | undefined
  readonly log: Log
}

/** The page over a daemon: it listens to syncs and objects, and runs until the signal. */
interface Dashboard extends SyncListener {
  readonly podNames: PodNames
  /** Takes what stops connections on this node; a sentence each. */
  obstacles(texts: readonly string[]): void
  run(signal: AbortSignal): Promise<void>
}

const retryMs = 5_000
const countEveryMs = 2_000
/** The pause is so many times as long as a count, because a large table takes long to read. */
const countShare = 20

/** Rejects with ConfigError where token or certificate cannot be read. */
export async function openDashboard(options: DashboardOptions): Promise<Dashboard> {
  const { address, files, metrics, mode, log } = options
  const access = await dashboardAccess(address, files)
  const podNames = new PodNames()
  const count = await endpointCounts(mode, metrics, options.flows !== undefined)
  const source = new DashboardSource({ ...options, podNames, count })
  return {
    podNames,
    started: ({ states }) => source.started(states),
    synced: (report) => source.synced(report),
    obstacles: (texts) => source.obstacles(texts),
    run: async (signal) => {
      const listen = () => PageServer.listen(source, address.port, access)
      const server = await opened(listen, options, signal)
      if (!server) return
      log.info({ url: server.url }, 'dashboard')
      let tookMs = 0
      try {
        while (!signal.aborted) {
          await pause(Math.max(countEveryMs, countShare * tookMs), signal)
          const began = performance.now()
          await source.count().catch((error: unknown) => {
            log.debug({ error: messageOf(error) }, 'the dashboard cannot count connections')
          })
          tookMs = performance.now() - began
        }
      } finally {
        await server.close()
      }
    },
  }
}

/**
 * Opens the page, or gives undefined at the signal. The proxy goes on without the page, and the port is
 * tried again: the process before this one still has it for a moment, in a take-over for longer.
 */
async function opened(
  listen: () => Promise<PageServer>,
  { address, log }: Pick<DashboardOptions, 'address' | 'log'>,
  signal: AbortSignal,
): Promise<PageServer | undefined> {
  let told = ''
  while (!signal.aborted) {
    try {
      return await listen()
    } catch (error) {
      const message = messageOf(error)
      if (message !== told) {
        log.error({ error: message, ...address }, 'the dashboard cannot be opened, will retry')
      }
      told = message
      await pause(retryMs, signal)
    }
  }
  return undefined
}

/**
 * Connections by endpoint. Userspace mode counts them, and so does every mode with --flows. Other
 * modes show the connections that the kernel tracks now; ebpf mode adds the connections that its
 * programs have counted.
 */
async function endpointCounts(
  mode: ModeName,
  metrics: Pick<Metrics, 'readSeries'>,
  countsFlows: boolean,
): Promise<(state: DesiredState, key: string) => Promise<readonly AnswerCount[]>> {
  // Loaded early: Node.js never repeats an import that failed for lack of file descriptors.
  const isCounted = countsConnections(mode, countsFlows)
  const tracked = isCounted ? undefined : await import('../../kernel/conntrack.js')
  return async (state, key) => {
    const service = state.services.get(key)
    if (!service) return []
    const counts = new Map<string, number>()
    if (isCounted || mode === 'ebpf') {
      for (const { label, value } of await metrics.readSeries(['service_connections_total'])) {
        if (label('service') === service.portName) counts.set(label('endpoint'), value)
      }
    }
    if (tracked) {
      const own = ownFrontends(service, state)
      const flows = await tracked.listTrackedFlows(state.family)
      for (const { protocol, destination, answeredBy } of flows.filter(isTranslated)) {
        if (protocol !== service.protocol) continue
        if (!own.has(hostPort(destination.ip, destination.port))) continue
        const endpoint = hostPort(answeredBy.ip, answeredBy.port)
        counts.set(endpoint, (counts.get(endpoint) ?? 0) + 1)
      }
    }
    return [...counts].sort().map(([name, count]) => ({ name, count }))
  }
}

/** The addresses at which this service port gets the connections, and no other one. */
function ownFrontends(service: DesiredService, state: DesiredState): ReadonlySet<string> {
  const own = [...frontends(service, state)].filter(
    ({ ip, port }) => serviceAt(state, ip, port, service.protocol)?.key === service.key,
  )
  return new Set(own.map(({ ip, port }) => hostPort(ip, port)))
}
