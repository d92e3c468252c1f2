import type { Config } from '../../config/config.js'

/** The part of the configuration that this mode reads. */
export type IptablesSettings = Readonly<ReturnType<typeof iptablesSettings>>

export function iptablesSettings({ iptables, conntrack, flows }: Config) {
  return {
    masqueradeBit: iptables.masqueradeBit,
    masqueradeAll: iptables.masqueradeAll,
    localhostNodePorts: iptables.localhostNodePorts,
    dropsInvalid: !conntrack.tcpBeLiberal,
    syncPeriodMs: iptables.syncPeriod,
    /** The kernel logs refused and dropped packets to the proxy. */
    logsRefused: flows.enabled,
  }
}
