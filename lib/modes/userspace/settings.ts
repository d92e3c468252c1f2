import { parsePortRange } from '../../state/ip.js'
import type { Config } from '../../config/config.js'

/** The part of the configuration that this mode reads. */
export interface UserspaceSettings {
  readonly syncPeriodMs: number
  readonly bindAddress: string
  /** Inclusive; undefined lets the kernel pick (US31). */
  readonly portRange: { readonly from: number; readonly to: number } | undefined
  readonly udpIdleTimeoutMs: number
  readonly datapath: 'net' | 'splice' | 'auto'
  /** 0: as many as there are cores. */
  readonly workers: number
  /** `auto`: iptables where it works. */
  readonly portals: 'auto' | 'iptables' | 'addresses'
  readonly drainTimeoutMs: number
  readonly passiveHealth: boolean
  /** Whether endpoints see the client's own address. */
  readonly sourceAddress: 'auto' | 'keep' | 'hide'
  /** `--masquerade-all`: the kernel modes hide every client of a ClusterIP from its endpoints. */
  readonly masqueradesAll: boolean
  /** The level of a line for each connection; undefined: none. */
  readonly accessLog: 'debug' | 'info' | 'warn' | undefined
  /** What is refused or dropped is logged to the proxy. */
  readonly logsRefused: boolean
  readonly takeover: boolean
  readonly takeoverFolder: string
}

/** The periods are those of the iptables section, as upstream (section 11). */
export function userspaceSettings(config: Config): UserspaceSettings {
  const { userspace } = config
  const range = parsePortRange(config.portRange)
  return {
    syncPeriodMs: config.iptables.syncPeriod,
    bindAddress: config.bindAddress,
    portRange: range === 'any' ? undefined : range,
    udpIdleTimeoutMs: config.udpIdleTimeout,
    datapath: userspace.datapath,
    workers: userspace.workers,
    portals: userspace.portals,
    drainTimeoutMs: userspace.drainTimeout,
    passiveHealth: userspace.passiveHealth,
    sourceAddress: userspace.sourceAddress,
    masqueradesAll: config.iptables.masqueradeAll,
    accessLog: userspace.accessLog ? userspace.accessLogLevel : undefined,
    logsRefused: config.flows.enabled,
    takeover: config.takeover,
    takeoverFolder: userspace.takeoverFolder,
  }
}

/** For winuserspace: Windows has no iptables, and a process cannot give its sockets to the next. */
export function windowsSettings(config: Config): UserspaceSettings {
  return {
    ...userspaceSettings(config),
    portals: 'addresses',
    datapath: 'net',
    sourceAddress: 'hide',
    takeover: false,
    takeoverFolder: '',
  }
}
