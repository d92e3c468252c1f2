import type { ModeName, ModeSettings } from '../modes/mode.js'
import type { IpFamily } from '../state/ip.js'
import { parsePortRange } from './addresses.js'
import type { Config } from './config.js'

/** What the modes read of the configuration, for the mode that was chosen. */
export function modeSettings(
  config: Config,
  mode: ModeName,
  families: readonly IpFamily[],
): ModeSettings {
  const { iptables, nftables, ipvs, userspace } = config
  const range = parsePortRange(config.portRange)
  return {
    families,
    masqueradeBit: mode === 'nftables' ? nftables.masqueradeBit : iptables.masqueradeBit,
    // ipvs and userspace read the iptables section, as upstream (section 11).
    masqueradeAll: mode === 'nftables' ? nftables.masqueradeAll : iptables.masqueradeAll,
    localhostNodePorts: iptables.localhostNodePorts,
    syncPeriodMs: syncPeriods(config, mode).syncMs,
    conntrackTcpBeLiberal: config.conntrack.tcpBeLiberal,
    ipvs: {
      scheduler: ipvs.scheduler === '' ? 'rr' : ipvs.scheduler,
      excludeCidrs: ipvs.excludeCIDRs,
      strictArp: ipvs.strictARP,
      tcpTimeoutMs: ipvs.tcpTimeout,
      tcpFinTimeoutMs: ipvs.tcpFinTimeout,
      udpTimeoutMs: ipvs.udpTimeout,
      gracePeriodMs: ipvs.gracefulPeriod,
    },
    userspace: {
      bindAddress: config.bindAddress,
      portRange: range === 'any' ? undefined : range,
      udpIdleTimeoutMs: config.udpIdleTimeout,
      datapath: userspace.datapath,
      workers: userspace.workers,
      portals: userspace.portals,
      drainTimeoutMs: userspace.drainTimeout,
      passiveHealth: userspace.passiveHealth,
      accessLog: userspace.accessLog ? userspace.accessLogLevel : undefined,
      takeover: config.takeover,
      takeoverFolder: userspace.takeoverFolder,
    },
  }
}

export interface SyncPeriods {
  /** Least time between two syncs. */
  readonly minMs: number
  /** Retry after a failure; in ipvs mode also the longest time between two syncs (R04). */
  readonly syncMs: number
}

/** The periods of the section that belongs to the mode. */
export function syncPeriods(config: Config, mode: ModeName): SyncPeriods {
  const section = mode === 'userspace' ? config.iptables : config[mode]
  return { minMs: section.minSyncPeriod, syncMs: section.syncPeriod }
}

/** CIDRs or `primary`; what an empty setting means depends on the mode (section 11). */
export function nodePortAddresses(config: Config, mode: ModeName): readonly string[] {
  const unset = config.nodePortAddresses.length === 0
  return unset && mode === 'nftables' ? ['primary'] : config.nodePortAddresses
}
