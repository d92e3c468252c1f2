import type { Config } from '../../config/config.js'
import { isEnabled } from '../../config/feature-gates.js'

/** The part of the configuration that this mode reads in addition to nftables mode. */
export type EbpfSettings = Readonly<ReturnType<typeof ebpfSettings>>

export function ebpfSettings({ ebpf, featureGates, nftables }: Config) {
  return {
    sockets: ebpf.sockets,
    /** Folder of the cgroup whose processes are served; empty: all processes of the machine. */
    cgroup: ebpf.cgroup,
    /** Where a bpffs is mounted; empty: nothing is pinned. */
    bpffs: ebpf.bpffs,
    /** Where `nodePortAddresses` asks for loopback addresses. */
    localhostNodePorts: isEnabled(featureGates, 'KubeProxyNFTablesLocalhostNodePorts'),
    syncPeriodMs: nftables.syncPeriod,
  }
}
