import type { Config } from '../../config/config.js'

/** The part of the configuration that this mode reads. */
export interface IptablesSettings {
  readonly masqueradeBit: number
  readonly masqueradeAll: boolean
  readonly localhostNodePorts: boolean
  readonly dropsInvalid: boolean
  readonly syncPeriodMs: number
  /** The kernel logs refused and dropped packets to the proxy. */
  readonly logsRefused: boolean
}

export function iptablesSettings({ iptables, conntrack, flows }: Config): IptablesSettings {
  return {
    masqueradeBit: iptables.masqueradeBit,
    masqueradeAll: iptables.masqueradeAll,
    localhostNodePorts: iptables.localhostNodePorts,
    dropsInvalid: !conntrack.tcpBeLiberal,
    syncPeriodMs: iptables.syncPeriod,
    logsRefused: flows.enabled,
  }
}
