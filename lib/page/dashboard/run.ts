import { pause } from '../../async.js'
import { dashboardAccess, type DashboardFiles } from './access.js'
import { DashboardSource } from './source.js'
import { connectionsIn } from '../../inspect/top/daemon-numbers.js'
import { frontends } from '../../inspect/top/rows.js'
import { hostPort } from '../../state/ip.js'
import { messageOf } from '../../errors.js'
import { PodNames } from './pod-names.js'
import { PageServer } from '../server.js'
import type { AnswerCount } from '../view.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { HostPort } from '../../config/addresses.js'
import type { Config, ModeName } from '../../config/config.js'
import type { Log, Planner } from '../../modes/mode.js'
import type { Metrics } from '../../observe/metrics.js'
import type { ObjectSink } from '../../sources/source.js'
import type { SyncListener } from '../../sync/sync-round.js'

export interface DashboardOptions {
  readonly address: HostPort
  readonly files: DashboardFiles
  readonly mode: ModeName
  readonly config: Config
  readonly nodeName: string
  readonly planner: Planner
  readonly metrics: Metrics
  readonly log: Log
}

/** The page over a daemon: it listens to syncs and objects, and runs until the signal. */
export interface Dashboard extends SyncListener {
  /** A sink that reads the names of pods and hands every object on. */
  wrapSink(sink: ObjectSink): ObjectSink
  run(signal: AbortSignal): Promise<void>
}

const countEveryMs = 2_000

/** Rejects with ConfigError where token or certificate cannot be read. */
export async function openDashboard(options: DashboardOptions): Promise<Dashboard> {
  const { address, files, metrics, mode, log } = options
  const access = await dashboardAccess(address, files)
  const page = async () => (await metrics.page()).body
  const podNames = new PodNames()
  const source = new DashboardSource({ ...options, podNames, count: endpointCounts(mode, page) })
  return {
    wrapSink: (sink) => podNames.wrapSink(sink),
    started: ({ states }) => source.changed(states),
    synced: () => undefined,
    run: async (signal) => {
      let server: PageServer
      try {
        server = await PageServer.listen(source, address.port, access)
      } catch (error) {
        // The proxy goes on without the page.
        log.error({ error: messageOf(error), ...address }, 'the dashboard cannot be opened')
        return
      }
      log.info({ url: server.url }, 'dashboard')
      try {
        while (!signal.aborted) {
          await pause(countEveryMs, signal)
          await source.count().catch((error: unknown) => {
            log.debug({ error: messageOf(error) }, 'the dashboard cannot count connections')
          })
        }
      } finally {
        await server.close()
      }
    },
  }
}

/**
 * Connections by endpoint: counted by the proxy itself in userspace mode; else those that the
 * kernel tracks now.
 */
function endpointCounts(
  mode: ModeName,
  metrics: () => Promise<string>,
): (state: DesiredState, key: string) => Promise<readonly AnswerCount[]> {
  return async (state, key) => {
    const service = state.services.get(key)
    if (!service) return []
    const counts = new Map<string, number>()
    if (mode === 'userspace') {
      for (const { endpoint, service: portName, count } of connectionsIn(await metrics())) {
        if (portName === service.portName) counts.set(endpoint, count)
      }
    } else {
      const { listTrackedFlows } = await import('../../kernel/tracked-flows.js')
      const own = new Set(frontends(service, state))
      for (const { protocol, destination, answeredBy } of await listTrackedFlows(state.family)) {
        if (!own.has(`${protocol} ${destination.ip} ${destination.port}`)) continue
        const endpoint = hostPort(answeredBy.ip, answeredBy.port)
        counts.set(endpoint, (counts.get(endpoint) ?? 0) + 1)
      }
    }
    return [...counts].sort().map(([name, count]) => ({ name, count }))
  }
}
