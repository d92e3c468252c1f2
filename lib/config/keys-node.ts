import type { FeatureGates } from './config.js'
import { keysOf } from './key.js'
import { gatesKind } from './kinds.js'

const second = 1000
const minute = 60 * second
const hour = 60 * minute

const cluster = keysOf('Cluster or manifests')
const node = keysOf('This node')
const local = keysOf('Local traffic')
const conntrack = keysOf('Connection tracking')
const proc = keysOf('Process')
const windows = keysOf('Windows')

const windowsOnly = 'it concerns Windows nodes'

/** Where objects come from, what this node is, and what is set on it whatever the mode. */
export const nodeKeys = {
  'clientConnection.kubeconfig': cluster.string(
    '',
    'Path of the kubeconfig; without it, --master and --manifests, the in-cluster account is used',
    { flags: ['kubeconfig'] },
  ),
  master: cluster.string('', 'Address of the API server, overrides that of the kubeconfig', {
    flags: ['master'],
    known: 'here',
  }),
  manifests: cluster.string(
    '',
    'File or folder of YAML or JSON manifests to serve instead of a cluster; followed live',
    { flags: ['manifests'], known: 'here' },
  ),
  'clientConnection.acceptContentTypes': cluster.string('', 'Accept header for the API server', {
    idle: 'lists and watches are always read as JSON',
  }),
  'clientConnection.contentType': cluster.string(
    'application/vnd.kubernetes.protobuf',
    'Content type spoken with the API server',
    {
      flags: ['kube-api-content-type'],
      zeroIsDefault: true,
      idle: 'lists and watches are always read as JSON',
    },
  ),
  'clientConnection.qps': cluster.float(5, 'Requests a second to the API server', {
    flags: ['kube-api-qps'],
    zeroIsDefault: true,
    idle: 'a few watches and events need no limit; retries back off by themselves',
  }),
  'clientConnection.burst': cluster.int(10, 'Burst of requests to the API server', {
    flags: ['kube-api-burst'],
    zeroIsDefault: true,
    idle: 'a few watches and events need no limit; retries back off by themselves',
  }),
  configSyncPeriod: cluster.duration(
    15 * minute,
    'How often the objects from the API server are gone through anew',
    {
      flags: ['config-sync-period'],
      zeroIsDefault: true,
      idle: 'every sync works on the complete state, there is nothing to refresh',
    },
  ),

  hostnameOverride: node.string('', "Name of this node, where it is not the machine's host name", {
    flags: ['hostname-override'],
    overFile: true,
  }),
  bindAddress: node.string(
    '0.0.0.0',
    'Address of this node unless it is a wildcard; in userspace mode the address listened on',
    { flags: ['bind-address'], zeroIsDefault: true },
  ),
  nodePortAddresses: node.list(
    'CIDRs whose addresses serve node ports, or "primary"; empty: all (nftables mode: primary)',
    { flags: ['nodeport-addresses'] },
  ),

  clusterCIDR: local.string(
    '',
    'CIDR of the pods of the cluster, or two of different families with a comma',
    { flags: ['cluster-cidr'] },
  ),
  detectLocalMode: local.choice(
    ['', 'ClusterCIDR', 'NodeCIDR', 'BridgeInterface', 'InterfaceNamePrefix'],
    '',
    'How traffic of pods of this node is told from other traffic; empty: ClusterCIDR',
    { flags: ['detect-local-mode'] },
  ),
  'detectLocal.bridgeInterface': local.string('', 'Bridge of the pods (mode BridgeInterface)', {
    flags: ['pod-bridge-interface'],
  }),
  'detectLocal.interfaceNamePrefix': local.string(
    '',
    'What the names of pod interfaces start with (mode InterfaceNamePrefix)',
    { flags: ['pod-interface-name-prefix'] },
  ),

  'conntrack.maxPerCore': conntrack.int(
    32768,
    'Connections tracked per CPU core; 0 leaves nf_conntrack_max alone and ignores the minimum',
    { flags: ['conntrack-max-per-core'] },
  ),
  'conntrack.min': conntrack.int(131072, 'Least number of connections tracked', {
    flags: ['conntrack-min'],
  }),
  'conntrack.tcpEstablishedTimeout': conntrack.duration(
    24 * hour,
    'Idle time-out of established TCP connections; 0 leaves it',
    { flags: ['conntrack-tcp-timeout-established'] },
  ),
  'conntrack.tcpCloseWaitTimeout': conntrack.duration(
    hour,
    'Time-out of TCP connections in CLOSE_WAIT; 0 leaves it',
    { flags: ['conntrack-tcp-timeout-close-wait'] },
  ),
  'conntrack.tcpBeLiberal': conntrack.bool(false, 'Accept TCP packets out of the window', {
    flags: ['conntrack-tcp-be-liberal'],
  }),
  'conntrack.udpTimeout': conntrack.duration(0, 'Time-out of UDP flows; 0 leaves it', {
    flags: ['conntrack-udp-timeout'],
  }),
  'conntrack.udpStreamTimeout': conntrack.duration(
    0,
    'Time-out of UDP flows with answers; 0 leaves it',
    { flags: ['conntrack-udp-timeout-stream'] },
  ),

  oomScoreAdj: proc.int(-999, 'How late the kernel kills this process when memory runs out', {
    flags: ['oom-score-adj'],
  }),
  featureGates: proc.key<FeatureGates>(
    gatesKind,
    {},
    'Feature gates as Name=true,…; one we do not know is a warning, not an error',
    { flags: ['feature-gates'] },
  ),
  dryRun: proc.bool(false, 'Do everything but change the node; print what would change', {
    flags: ['dry-run'],
    known: 'here',
  }),
  initOnly: proc.bool(false, 'Do what needs full privileges (sysctls, modules), then exit', {
    flags: ['init-only'],
    known: 'here',
  }),

  windowsRunAsService: windows.bool(false, 'Run as a Windows service', {
    flags: ['windows-service'],
    idle: windowsOnly,
  }),
  'winkernel.networkName': windows.string('', 'HNS network', {
    flags: ['network-name'],
    idle: windowsOnly,
  }),
  'winkernel.sourceVip': windows.string('', 'Source address for NAT', {
    flags: ['source-vip'],
    idle: windowsOnly,
  }),
  'winkernel.enableDSR': windows.bool(false, 'Direct server return', {
    flags: ['enable-dsr'],
    idle: windowsOnly,
  }),
  'winkernel.rootHnsEndpointName': windows.string('', 'HNS endpoint of the node', {
    flags: ['root-hnsendpoint-name'],
    idle: windowsOnly,
  }),
  'winkernel.forwardHealthCheckVip': windows.bool(false, 'Forward health checks to the VIP', {
    flags: ['forward-healthcheck-vip'],
    idle: windowsOnly,
  }),
}
