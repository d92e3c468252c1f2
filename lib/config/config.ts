/**
 * The whole configuration as values, from a KubeProxyConfiguration file (v1alpha1), the flags and the
 * defaults. The paths are those of the file, so `iptables.syncPeriod` means the same in the file,
 * here, in docs/configuration.md and on /configz.
 */

import type { FeatureGates } from './feature-gates.js'

/** Durations are milliseconds here, and Go durations (`30s`) in files and flags. */
type Milliseconds = number

/** The least time between two syncs; `measured`: it follows from the cost of the last sync. */
export type SyncPace = Milliseconds | 'measured'

/** A mode that a node can run. */
export type ModeName = 'userspace' | 'winuserspace' | 'iptables' | 'ipvs' | 'nftables' | 'ebpf'

/**
 * The requested mode. Empty means iptables, as upstream; `auto` means the best mode for this node.
 */
export type ProxyMode = ModeName | '' | 'auto'

/** The group of nfnetlink_log to which rules log the packets that they refuse, with `--flows`. */
export const refusalGroup = 10_249

/**
 * The log prefixes of packets that a policy drops. Packets that rules refuse have an empty prefix.
 */
export const dropReasons = {
  sourceRange: 'not in loadBalancerSourceRanges',
  localPolicy: 'no local endpoint',
} as const

/** Whether this process itself carries the bytes of connections. */
export function isProxyMode(mode: ProxyMode): boolean {
  return mode === 'userspace' || mode === 'winuserspace'
}

/**
 * Whether the numbers of this process include every connection: those that it carries, and with
 * `--flows` those that the kernel carries. In ipvs mode the kernel's own numbers say more.
 */
export function countsConnections(mode: ProxyMode, countsFlows: boolean): boolean {
  return isProxyMode(mode) || (countsFlows && mode !== 'ipvs')
}

type DetectLocalMode = '' | 'ClusterCIDR' | 'NodeCIDR' | 'BridgeInterface' | 'InterfaceNamePrefix'

export interface Config {
  readonly featureGates: FeatureGates
  readonly clientConnection: ClientConnection
  /** Overrides the server address of the kubeconfig. */
  readonly master: string
  /** File or folder of manifests instead of the API server; empty: none. */
  readonly manifests: string
  readonly logging: Logging
  readonly hostnameOverride: string
  /** Hint for the node's address (L05); the real listen address in userspace mode (US30). */
  readonly bindAddress: string
  /** `IP:port`, or empty: no health server. */
  readonly healthzBindAddress: string
  /** `IP:port`, or empty: no metrics server. */
  readonly metricsBindAddress: string
  readonly bindAddressHardFail: boolean
  readonly enableProfiling: boolean
  readonly showHiddenMetricsForVersion: string
  readonly mode: ProxyMode
  /** The mode to run when this node cannot run the requested one. */
  readonly modeFallback: 'userspace' | 'iptables' | 'nftables' | 'none'
  readonly iptables: IptablesConfig
  readonly ipvs: IpvsConfig
  readonly nftables: NftablesConfig
  readonly ebpf: EbpfConfig
  readonly userspace: UserspaceConfig
  readonly winuserspace: WinuserspaceConfig
  readonly winkernel: WinkernelConfig
  readonly detectLocalMode: DetectLocalMode
  readonly detectLocal: DetectLocal
  /** One CIDR, or two of different families with a comma. */
  readonly clusterCIDR: string
  /** CIDRs, and the words `primary`, `localhost` and `all`. Empty means every address, in nftables and ebpf mode `primary`. */
  readonly nodePortAddresses: readonly string[]
  readonly oomScoreAdj: number
  readonly conntrack: ConntrackConfig
  readonly configSyncPeriod: Milliseconds
  /** Ports of the userspace listeners: `a-b`, `a+n` or `a`; empty lets the kernel choose. */
  readonly portRange: string
  readonly udpIdleTimeout: Milliseconds
  readonly windowsRunAsService: boolean
  /** `IP:port` of the page that shows the live daemon; empty: no page. */
  readonly dashboardAddress: string
  /** File with the token that viewers must give; empty: no token is needed. */
  readonly dashboardTokenFile: string
  readonly dashboardTLSCertFile: string
  readonly dashboardTLSKeyFile: string
  readonly flows: FlowsConfig
  readonly dryRun: boolean
  readonly initOnly: boolean
  /** Take the listeners over from a running process instead of opening new ones. */
  readonly takeover: boolean
}

interface FlowsConfig {
  readonly enabled: boolean
  /** The file that keeps numbers over a restart; empty: none. */
  readonly stateFile: string
  readonly otlp: {
    /** URL of an OpenTelemetry collector; empty: none. */
    readonly endpoint: string
  }
}

interface ClientConnection {
  readonly kubeconfig: string
  readonly acceptContentTypes: string
  readonly contentType: string
  readonly qps: number
  readonly burst: number
}

export interface Logging {
  /** Empty: text on a terminal, JSON otherwise. */
  readonly format: '' | 'text' | 'json'
  readonly flushFrequency: Milliseconds
  readonly verbosity: number
  readonly vmodule: readonly VModule[]
  readonly options: {
    readonly text: LogStream
    readonly json: LogStream
  }
}

export interface VModule {
  readonly filePattern: string
  readonly verbosity: number
}

interface LogStream {
  readonly splitStream: boolean
  /** Bytes. */
  readonly infoBufferSize: number
}

interface IptablesConfig {
  readonly masqueradeBit: number
  readonly masqueradeAll: boolean
  readonly localhostNodePorts: boolean
  readonly syncPeriod: Milliseconds
  readonly minSyncPeriod: SyncPace
}

interface IpvsConfig {
  readonly syncPeriod: Milliseconds
  readonly minSyncPeriod: SyncPace
  readonly scheduler: string
  readonly excludeCIDRs: readonly string[]
  readonly strictARP: boolean
  readonly tcpTimeout: Milliseconds
  readonly tcpFinTimeout: Milliseconds
  readonly udpTimeout: Milliseconds
  /** How long a removed TCP backend may finish its connections; 0: as long as they last. */
  readonly gracefulPeriod: Milliseconds
}

interface NftablesConfig {
  readonly masqueradeBit: number
  readonly masqueradeAll: boolean
  readonly syncPeriod: Milliseconds
  readonly minSyncPeriod: SyncPace
}

interface EbpfConfig {
  readonly sockets: 'all' | 'node'
  /** Folder of a cgroup; empty: the root of cgroup2, where every process of the node is. */
  readonly cgroup: string
  /** Where a bpffs is mounted; empty: nothing outlives the process. */
  readonly bpffs: string
}

interface UserspaceConfig {
  readonly datapath: 'net' | 'splice' | 'auto'
  /** 0: as many as there are cores. */
  readonly workers: number
  readonly portals: 'auto' | 'iptables' | 'addresses'
  readonly drainTimeout: Milliseconds
  readonly passiveHealth: boolean
  readonly sourceAddress: 'auto' | 'keep' | 'hide'
  readonly accessLog: boolean
  readonly accessLogLevel: 'debug' | 'info' | 'warn'
  /** Folder in which a process offers its listeners to the next one. */
  readonly takeoverFolder: string
}

interface WinuserspaceConfig {
  /** Name of the interface that gets the addresses of Services; empty: the program chooses. */
  readonly interface: string
}

interface WinkernelConfig {
  readonly networkName: string
  readonly sourceVip: string
  readonly enableDSR: boolean
  readonly rootHnsEndpointName: string
  readonly forwardHealthCheckVip: boolean
}

interface DetectLocal {
  readonly bridgeInterface: string
  readonly interfaceNamePrefix: string
}

interface ConntrackConfig {
  readonly maxPerCore: number
  readonly min: number
  readonly tcpEstablishedTimeout: Milliseconds
  readonly tcpCloseWaitTimeout: Milliseconds
  readonly tcpBeLiberal: boolean
  readonly udpTimeout: Milliseconds
  readonly udpStreamTimeout: Milliseconds
}

type Leaf = string | number | boolean | FeatureGates | readonly unknown[]

/** The dotted path of every value of the configuration. */
export type ConfigPath<T = Config> = {
  [K in keyof T & string]: T[K] extends Leaf ? K : `${K}.${ConfigPath<T[K]>}`
}[keyof T & string]

export type ValueAt<P, T = Config> = P extends keyof T
  ? T[P]
  : P extends `${infer K}.${infer Rest}`
    ? K extends keyof T
      ? ValueAt<Rest, T[K]>
      : never
    : never
