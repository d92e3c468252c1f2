import type { Config } from '../../config/config.js'
import { isEnabled } from '../../config/feature-gates.js'

/** The part of the configuration that this mode reads. */
export type NftablesSettings = Readonly<ReturnType<typeof nftablesSettings>>

export function nftablesSettings({ nftables, featureGates, flows }: Config) {
  return {
    masqueradeBit: nftables.masqueradeBit,
    masqueradeAll: nftables.masqueradeAll,
    /** Where `nodePortAddresses` asks for loopback addresses. */
    localhostNodePorts: isEnabled(featureGates, 'KubeProxyNFTablesLocalhostNodePorts'),
    syncPeriodMs: nftables.syncPeriod,
    /** The kernel logs refused packets to the proxy. */
    logsRefused: flows.enabled,
  }
}
