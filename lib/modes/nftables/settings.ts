import type { Config } from '../../config/config.js'

/** The part of the configuration that this mode reads. */
export interface NftablesSettings {
  readonly masqueradeBit: number
  readonly masqueradeAll: boolean
  readonly localhostNodePorts: boolean
  readonly syncPeriodMs: number
  /** The kernel logs refused packets to the proxy. */
  readonly logsRefused: boolean
}

export function nftablesSettings({ nftables, iptables, flows }: Config): NftablesSettings {
  return {
    masqueradeBit: nftables.masqueradeBit,
    masqueradeAll: nftables.masqueradeAll,
    localhostNodePorts: iptables.localhostNodePorts,
    syncPeriodMs: nftables.syncPeriod,
    logsRefused: flows.enabled,
  }
}
