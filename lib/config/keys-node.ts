import type { FeatureGates } from './feature-gates.js'
import { keysOf } from './key.js'
import { gatesKind } from './kinds.js'

const second = 1000
const minute = 60 * second
const hour = 60 * minute

const cluster = keysOf('Cluster or manifests')
const node = keysOf('This node')
const local = keysOf('Local traffic', { live: true })
const conntrack = keysOf('Connection tracking', { live: true })
const proc = keysOf('Process')
const windows = keysOf('Windows', {
  noEffect: 'it is for kernelspace mode, which programs HNS',
})

/** The source of objects, this node, and settings of the node that do not depend on the mode. */
export const nodeKeys = {
  'clientConnection.kubeconfig': cluster.path(
    '',
    'Path of the kubeconfig; empty: the service account of the pod, unless --master or --manifests is given',
    { flags: ['kubeconfig'] },
  ),
  master: cluster.string('', 'Address of the API server; overrides the one in the kubeconfig', {
    flags: ['master'],
    known: 'here',
  }),
  manifests: cluster.path(
    '',
    'File or folder of YAML or JSON manifests to serve instead of a cluster; changes are followed',
    { flags: ['manifests'], known: 'here' },
  ),
  'clientConnection.acceptContentTypes': cluster.string('', 'Accept header for the API server', {
    noEffect: 'lists and watches are always read as JSON',
  }),
  'clientConnection.contentType': cluster.string(
    'application/vnd.kubernetes.protobuf',
    'Content type spoken with the API server',
    {
      flags: ['kube-api-content-type'],
      zeroIsDefault: true,
      noEffect: 'lists and watches are always read as JSON',
    },
  ),
  'clientConnection.qps': cluster.float(5, 'Requests a second to the API server', {
    flags: ['kube-api-qps'],
    zeroIsDefault: true,
    noEffect: 'the proxy sends few requests, and retries wait longer each time',
  }),
  'clientConnection.burst': cluster.int(10, 'Burst of requests to the API server', {
    flags: ['kube-api-burst'],
    zeroIsDefault: true,
    noEffect: 'the proxy sends few requests, and retries wait longer each time',
  }),
  configSyncPeriod: cluster.duration(
    15 * minute,
    'How often all objects from the API server are processed again',
    {
      flags: ['config-sync-period'],
      zeroIsDefault: true,
      noEffect: 'every sync works on the complete state, so nothing needs a refresh',
    },
  ),

  hostnameOverride: node.string('', 'Name of this node, if it differs from the host name', {
    flags: ['hostname-override'],
    overFile: true,
  }),
  bindAddress: node.string(
    '0.0.0.0',
    'Address of this node, unless it is a wildcard; in userspace mode the address of the listeners',
    { flags: ['bind-address'], zeroIsDefault: true },
  ),
  nodePortAddresses: node.list(
    'CIDRs of the addresses that serve node ports, or "primary", "localhost", "all"; empty: all (nftables, ebpf: primary)',
    { flags: ['nodeport-addresses'], live: true },
  ),

  clusterCIDR: local.string(
    '',
    'CIDR of the pods of the cluster, or two of different families, separated by a comma',
    { flags: ['cluster-cidr'] },
  ),
  detectLocalMode: local.choice(
    ['', 'ClusterCIDR', 'NodeCIDR', 'BridgeInterface', 'InterfaceNamePrefix'],
    '',
    'How traffic from pods of this node is recognized; empty: ClusterCIDR',
    { flags: ['detect-local-mode'] },
  ),
  'detectLocal.bridgeInterface': local.string('', 'Bridge of the pods (mode BridgeInterface)', {
    flags: ['pod-bridge-interface'],
  }),
  'detectLocal.interfaceNamePrefix': local.string(
    '',
    'Prefix of the names of pod interfaces (mode InterfaceNamePrefix)',
    { flags: ['pod-interface-name-prefix'] },
  ),

  'conntrack.maxPerCore': conntrack.int(
    32768,
    'Connections tracked per CPU core; 0: nf_conntrack_max is unchanged, whatever conntrack.min says',
    { flags: ['conntrack-max-per-core'] },
  ),
  'conntrack.min': conntrack.int(131072, 'Least number of connections tracked', {
    flags: ['conntrack-min'],
  }),
  'conntrack.tcpEstablishedTimeout': conntrack.duration(
    24 * hour,
    'Idle time-out of established TCP connections; 0: unchanged',
    { flags: ['conntrack-tcp-timeout-established'] },
  ),
  'conntrack.tcpCloseWaitTimeout': conntrack.duration(
    hour,
    'Time-out of TCP connections in CLOSE_WAIT; 0: unchanged',
    { flags: ['conntrack-tcp-timeout-close-wait'] },
  ),
  'conntrack.tcpBeLiberal': conntrack.bool(
    false,
    'Accept TCP packets that are out of the window; false: unchanged',
    { flags: ['conntrack-tcp-be-liberal'] },
  ),
  'conntrack.udpTimeout': conntrack.duration(0, 'Time-out of UDP flows; 0: unchanged', {
    flags: ['conntrack-udp-timeout'],
  }),
  'conntrack.udpStreamTimeout': conntrack.duration(
    0,
    'Time-out of UDP flows with packets in both directions; 0: unchanged',
    { flags: ['conntrack-udp-timeout-stream'] },
  ),

  oomScoreAdj: proc.int(
    -999,
    'OOM score of this process; with a low one the kernel kills other processes first',
    {
      flags: ['oom-score-adj'],
      live: true,
    },
  ),
  featureGates: proc.key<FeatureGates>(
    gatesKind,
    {},
    'Feature gates as Name=true,…; an unknown gate is a warning, not an error',
    { flags: ['feature-gates'] },
  ),
  dryRun: proc.bool(
    false,
    'Change nothing on this node; until it is stopped, print what the mode would write, but not the kernel settings',
    {
      flags: ['dry-run'],
      known: 'here',
    },
  ),
  initOnly: proc.bool(
    false,
    'Do what needs full privileges (sysctls, modules of the mode that runs here), then exit',
    {
      flags: ['init-only'],
      known: 'here',
    },
  ),

  windowsRunAsService: windows.bool(false, 'Run as a Windows service', {
    flags: ['windows-service'],
    noEffect: 'a wrapper runs it as a service (docs/windows.md)',
  }),
  'winkernel.networkName': windows.string('', 'HNS network', { flags: ['network-name'] }),
  'winkernel.sourceVip': windows.string('', 'Source address for NAT', { flags: ['source-vip'] }),
  'winkernel.enableDSR': windows.bool(false, 'Direct server return', { flags: ['enable-dsr'] }),
  'winkernel.rootHnsEndpointName': windows.string('', 'HNS endpoint of the node', {
    flags: ['root-hnsendpoint-name'],
  }),
  'winkernel.forwardHealthCheckVip': windows.bool(false, 'Forward health checks to the VIP', {
    flags: ['forward-healthcheck-vip'],
  }),
}
