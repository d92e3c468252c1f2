import { pause } from '../../async.js'
import { dashboardAccess, type DashboardFiles } from './access.js'
import { DashboardStage } from './stage.js'
import { endpointCounts } from './endpoint-counts.js'
import { messageOf } from '../../errors.js'
import { PodNames } from './pod-names.js'
import { PageServer } from '../server.js'
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
  const stage = new DashboardStage({ ...options, podNames, count: endpointCounts(mode, page) })
  return {
    wrapSink: (sink) => podNames.wrapSink(sink),
    started: ({ states }) => stage.changed(states),
    synced: () => undefined,
    run: async (signal) => {
      let server: PageServer
      try {
        server = await PageServer.listen(stage, address.port, access)
      } catch (error) {
        // A page is no reason to stop serving connections.
        log.error({ error: messageOf(error), ...address }, 'the dashboard cannot be opened')
        return
      }
      log.info({ url: server.url }, 'dashboard')
      try {
        while (!signal.aborted) {
          await pause(countEveryMs, signal)
          await stage.count().catch((error: unknown) => {
            log.debug({ error: messageOf(error) }, 'the dashboard cannot count connections')
          })
        }
      } finally {
        await server.close()
      }
    },
  }
}
