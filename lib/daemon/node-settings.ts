import { applyConntrackSettings } from '../kernel/conntrack-settings.js'
import { Sysctls } from '../kernel/sysctl.js'
import { setOomScore } from './node-facts.js'
import type { Config } from '../config/config.js'
import type { Log } from '../modes/mode.js'

/** Prepares the kernel: connection table, time-outs, OOM score. No failure is fatal (pains 24). */
export function applyNodeSettings(config: Config, log: Log, sysctls = new Sysctls()): void {
  const oomFailure = setOomScore(config.oomScoreAdj)
  if (oomFailure !== undefined) log.debug({ error: oomFailure }, 'OOM score not set')
  const { conntrack } = config
  const outcomes = applyConntrackSettings(
    {
      maxPerCore: conntrack.maxPerCore,
      min: conntrack.min,
      tcpEstablishedTimeoutSeconds: seconds(conntrack.tcpEstablishedTimeout),
      tcpCloseWaitTimeoutSeconds: seconds(conntrack.tcpCloseWaitTimeout),
      udpTimeoutSeconds: seconds(conntrack.udpTimeout),
      udpStreamTimeoutSeconds: seconds(conntrack.udpStreamTimeout),
      tcpBeLiberal: conntrack.tcpBeLiberal,
    },
    sysctls,
  )
  for (const { name, wanted, before, result, reason } of outcomes) {
    const fields = { setting: name, wanted, before }
    if (result === 'failed') log.warn({ ...fields, reason }, 'kernel setting not changed')
    else if (result === 'written') log.info(fields, 'kernel setting changed')
  }
}

/** Rounded up: half a second must not become "leave it alone". */
function seconds(ms: number): number {
  return Math.ceil(ms / 1000)
}
