import type { Config } from '../../config/config.js'
import { isEnabled } from '../../config/feature-gates.js'

/** The part of the configuration that this mode reads in addition to nftables mode. */
export interface EbpfSettings {
  readonly sockets: 'all' | 'node'
  /** Folder of the cgroup whose processes are served; empty: all processes of the machine. */
  readonly cgroup: string
  /** Where a bpffs is mounted; empty: nothing is pinned. */
  readonly bpffs: string
  /** Where `nodePortAddresses` asks for loopback addresses. */
  readonly localhostNodePorts: boolean
  readonly syncPeriodMs: number
}

export function ebpfSettings({ ebpf, featureGates, nftables }: Config): EbpfSettings {
  return {
    sockets: ebpf.sockets,
    cgroup: ebpf.cgroup,
    bpffs: ebpf.bpffs,
    localhostNodePorts: isEnabled(featureGates, 'KubeProxyNFTablesLocalhostNodePorts'),
    syncPeriodMs: nftables.syncPeriod,
  }
}
