import type { Config } from '../../config/config.js'
import { isEnabled } from '../../config/feature-gates.js'

/** The part of the configuration that this mode reads. */
export interface NftablesSettings {
  readonly masqueradeBit: number
  readonly masqueradeAll: boolean
  /** Where `nodePortAddresses` asks for loopback addresses. */
  readonly localhostNodePorts: boolean
  readonly syncPeriodMs: number
  /** The kernel logs refused packets to the proxy. */
  readonly logsRefused: boolean
}

export function nftablesSettings({ nftables, featureGates, flows }: Config): NftablesSettings {
  return {
    masqueradeBit: nftables.masqueradeBit,
    masqueradeAll: nftables.masqueradeAll,
    localhostNodePorts: isEnabled(featureGates, 'KubeProxyNFTablesLocalhostNodePorts'),
    syncPeriodMs: nftables.syncPeriod,
    logsRefused: flows.enabled,
  }
}
