import { cpus } from 'node:os'
import { loadLibc } from '../../../kernel/sockets/libc.js'
import type { ModeContext } from '../../mode.js'
import type { UserspaceSettings } from '../settings.js'
import {
  DescriptorBudget,
  descriptorLimit,
  listenAdvice,
  waitingLimit,
} from '../datapath/descriptors.js'
import { Listeners } from './listeners.js'
import type { WorkerReport, WorkerSettings } from './messages.js'
import { TrafficMeter } from './traffic-meter.js'

/** The listeners of the live mode. What happens to them goes to the log and the metrics. */
export function createListeners(
  userspace: UserspaceSettings,
  context: ModeContext,
  sources: SharedArrayBuffer,
): Listeners {
  const { log, meter } = context
  // If only a worker has koffi, its end unloads koffi and may crash the process.
  if (userspace.datapath !== 'net') void loadLibc().catch(() => undefined)
  const limit = descriptorLimit()
  const budget = new DescriptorBudget(DescriptorBudget.allocate(limit, waitingLimit(limit)))
  const traffic = new TrafficMeter(meter)
  const options = {
    workers: userspace.workers === 0 ? cpus().length : userspace.workers,
    dataPath: userspace.datapath,
    passiveHealth: userspace.passiveHealth,
    accessLog: accessOf(userspace, context),
    descriptors: budget.shared,
    sources,
    range: userspace.portRange,
    meter,
  }
  return new Listeners(options, {
    reported: (report) => {
      if (report.kind === 'counts') traffic.record(report.counts)
      else takeReport(report, context, userspace.accessLog)
      const shortages = budget.takeShortages()
      if (shortages > 0) meter.count('userspace_descriptors_exhausted_total', {}, shortages)
    },
    closed: (key) => {
      traffic.closed(key)
    },
    crowded: (fits) => log.error(fits, `not every service port fits: ${listenAdvice}`),
    lost: (reason, keys) => {
      traffic.lost(keys)
      log.error({ reason }, 'a userspace worker ended with its connections; it was replaced')
      context.resync(reason, { byOthers: false })
    },
  })
}

function accessOf(
  { accessLog }: UserspaceSettings,
  { carried }: ModeContext,
): WorkerSettings['accessLog'] {
  if (accessLog !== undefined) return 'all'
  return carried ? 'sample' : 'none'
}

function takeReport(
  report: Exclude<WorkerReport, { readonly kind: 'counts' }>,
  { log, carried }: Pick<ModeContext, 'log' | 'carried'>,
  accessLevel: UserspaceSettings['accessLog'],
): void {
  switch (report.kind) {
    case 'ready': {
      const { dataPath, note } = report
      log.info({ dataPath, ...(note === '' ? {} : { note }) }, 'userspace worker is ready')
      break
    }
    case 'access':
      carried?.(report.entries, report.leftOut)
      if (accessLevel === undefined) break
      for (const entry of report.entries) log[accessLevel](entry, 'connection')
      break
    case 'warning':
      log.warn(report.repeated === 0 ? {} : { repeated: report.repeated }, report.message)
  }
}
