import { parsePortRange } from '../../state/ip.js'
import type { Config } from '../../config/config.js'

type UserspaceConfig = Config['userspace']

/** The part of the configuration that this mode reads. */
export interface UserspaceSettings extends Omit<
  UserspaceConfig,
  'drainTimeout' | 'accessLog' | 'accessLogLevel'
> {
  readonly syncPeriodMs: number
  readonly bindAddress: string
  /** Inclusive; undefined lets the kernel pick (US31). */
  readonly portRange: { readonly from: number; readonly to: number } | undefined
  readonly udpIdleTimeoutMs: number
  readonly drainTimeoutMs: number
  /** `--masquerade-all`: the kernel modes hide every client of a ClusterIP from its endpoints. */
  readonly masqueradesAll: boolean
  /** The level of a line for each connection; undefined: none. */
  readonly accessLog: UserspaceConfig['accessLogLevel'] | undefined
  /** What is refused or dropped is logged to the proxy. */
  readonly logsRefused: boolean
  readonly takeover: boolean
}

/** The periods are those of the iptables section, as upstream (section 11). */
export function userspaceSettings(config: Config): UserspaceSettings {
  const { drainTimeout, accessLog, accessLogLevel, ...settings } = config.userspace
  const range = parsePortRange(config.portRange)
  return {
    ...settings,
    syncPeriodMs: config.iptables.syncPeriod,
    bindAddress: config.bindAddress,
    portRange: range === 'any' ? undefined : range,
    udpIdleTimeoutMs: config.udpIdleTimeout,
    drainTimeoutMs: drainTimeout,
    masqueradesAll: config.iptables.masqueradeAll,
    accessLog: accessLog ? accessLogLevel : undefined,
    logsRefused: config.flows.enabled,
    takeover: config.takeover,
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
