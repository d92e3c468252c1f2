import { keysOf } from './key.js'

const second = 1000
const leastTime =
  'Least time between two syncs; not set (in a file, 0): nine times what syncs cost, at most 1s'
const choosing = keysOf('Mode')
const iptables = keysOf('iptables', { live: true })
const nftables = keysOf('nftables', { live: true })
const ebpf = keysOf('ebpf', { known: 'here' })
const ipvs = keysOf('ipvs', { live: true })
const userspace = keysOf('userspace', { known: 'here' })
const windows = keysOf('Windows')

/** Why the mode of kube-proxy on Windows is refused. */
const kernelspace =
  'this program has no kernelspace mode, which programs HNS; on Windows it has winuserspace, ' +
  'a proxy in user space (docs/windows.md)'

/** The keys that choose the mode, and the keys that each mode reads. */
export const modeKeys = {
  mode: choosing.choice(
    ['', 'userspace', 'winuserspace', 'iptables', 'ipvs', 'nftables', 'ebpf', 'auto'],
    '',
    'Proxy mode; empty: iptables; auto: the best mode that this node can run; on Windows empty, auto ' +
      'and userspace are winuserspace',
    { flags: ['proxy-mode'], advice: { kernelspace } },
  ),
  modeFallback: choosing.choice(
    ['userspace', 'iptables', 'nftables', 'none'],
    'userspace',
    'Mode to run when this node cannot run the requested one; none: exit instead',
    { flags: ['proxy-mode-fallback'], known: 'here' },
  ),

  'iptables.masqueradeBit': iptables.int(
    14,
    'Bit of the packet mark that requests masquerade (iptables and ipvs)',
    { flags: ['iptables-masquerade-bit'] },
  ),
  'iptables.masqueradeAll': iptables.bool(
    false,
    'Masquerade everything sent to a ClusterIP (iptables, ipvs, userspace)',
    { flags: ['masquerade-all'] },
  ),
  'iptables.localhostNodePorts': iptables.bool(
    true,
    'iptables mode: let node ports answer on 127.0.0.1 too (sets route_localnet)',
    { flags: ['iptables-localhost-nodeports'] },
  ),
  'iptables.syncPeriod': iptables.duration(
    30 * second,
    'Retry interval after a failed sync (iptables, userspace; as a flag nftables too)',
    { flags: ['iptables-sync-period'], zeroIsDefault: true },
  ),
  'iptables.minSyncPeriod': iptables.pace(
    `${leastTime} (iptables, userspace; as a flag nftables too)`,
    { flags: ['iptables-min-sync-period'] },
  ),

  'nftables.masqueradeBit': nftables.int(14, 'Bit of the packet mark that requests masquerade', {}),
  'nftables.masqueradeAll': nftables.bool(false, 'Masquerade everything sent to a ClusterIP', {
    flags: ['masquerade-all'],
  }),
  'nftables.syncPeriod': nftables.duration(30 * second, 'Retry interval after a failed sync', {
    flags: ['iptables-sync-period'],
    zeroIsDefault: true,
  }),
  'nftables.minSyncPeriod': nftables.pace(leastTime, {
    flags: ['iptables-min-sync-period'],
  }),

  'ebpf.sockets': ebpf.choice(
    ['all', 'node'],
    'all',
    'Whose connections are translated at the socket; all: of the node and of its pods; node: only ' +
      'of the node, for service meshes that redirect in the pod',
    { flags: ['ebpf-sockets'] },
  ),
  'ebpf.cgroup': ebpf.path(
    '',
    'Folder of the cgroup (version 2) whose processes are served; empty: all of the node',
    { flags: ['ebpf-cgroup'] },
  ),
  'ebpf.bpffs': ebpf.path(
    '/sys/fs/bpf',
    'BPF file system that keeps the programs attached while the proxy restarts; empty: none',
    { flags: ['ebpf-bpffs'] },
  ),

  'ipvs.syncPeriod': ipvs.duration(30 * second, 'Longest time between two syncs', {
    flags: ['ipvs-sync-period'],
    zeroIsDefault: true,
  }),
  'ipvs.minSyncPeriod': ipvs.pace(leastTime, { flags: ['ipvs-min-sync-period'] }),
  'ipvs.scheduler': ipvs.string('', 'Scheduler: rr, wrr, lc, sh and so on; empty: rr', {
    flags: ['ipvs-scheduler'],
  }),
  'ipvs.excludeCIDRs': ipvs.list('Leave virtual servers with addresses in these CIDRs alone', {
    flags: ['ipvs-exclude-cidrs'],
  }),
  'ipvs.strictARP': ipvs.bool(
    false,
    'Answer ARP requests only on the interface that has the address; false: unchanged',
    { flags: ['ipvs-strict-arp'] },
  ),
  'ipvs.tcpTimeout': ipvs.duration(0, 'Idle time-out of TCP connections; 0: unchanged', {
    flags: ['ipvs-tcp-timeout'],
  }),
  'ipvs.tcpFinTimeout': ipvs.duration(0, 'Time-out of TCP connections after FIN; 0: unchanged', {
    flags: ['ipvs-tcpfin-timeout'],
  }),
  'ipvs.udpTimeout': ipvs.duration(0, 'Time-out of UDP flows; 0: unchanged', {
    flags: ['ipvs-udp-timeout'],
  }),
  'ipvs.gracefulPeriod': ipvs.duration(
    0,
    'How long connections to a removed TCP endpoint may last; 0: without limit',
    { flags: ['ipvs-graceful-period'], known: 'here' },
  ),

  portRange: userspace.string(
    '',
    'Ports of the listeners: a-b, a+n or a; empty: the kernel chooses',
    { flags: ['proxy-port-range'], known: '1.36' },
  ),
  udpIdleTimeout: userspace.duration(250, 'How long an idle UDP client is remembered', {
    flags: ['udp-timeout'],
    known: '1.25',
    zeroIsDefault: true,
  }),
  'userspace.datapath': userspace.choice(
    ['net', 'splice', 'auto'],
    'auto',
    'How bytes are copied; net: by sockets of Node.js; splice: by system calls on descriptors; ' +
      'auto: splice where it works',
    { flags: ['userspace-datapath'] },
  ),
  'userspace.workers': userspace.int(0, 'Number of worker threads that copy; 0: one per core', {
    flags: ['userspace-workers'],
  }),
  'userspace.portals': userspace.choice(
    ['auto', 'iptables', 'addresses'],
    'auto',
    'How traffic reaches the listeners; iptables: rules redirect it; addresses: the node gets the ' +
      'Service addresses, for traffic of this node only; auto: iptables where it works',
    { flags: ['userspace-portals'] },
  ),
  'userspace.drainTimeout': userspace.duration(
    30 * second,
    'How long open connections may last after the process is told to stop',
    { flags: ['drain-timeout'], live: true },
  ),
  'userspace.passiveHealth': userspace.bool(
    true,
    'Try an endpoint last for a while after it could not be reached',
    { flags: ['userspace-passive-health'] },
  ),
  'userspace.sourceAddress': userspace.choice(
    ['auto', 'keep', 'hide'],
    'auto',
    "What endpoints see as the client's address; hide: this node's; keep: the client's own, as in " +
      'the kernel modes, with NET_ADMIN and iptables; auto: like keep where this node can, but not ' +
      'between pods of one bridge',
    { flags: ['userspace-source-address'] },
  ),
  'userspace.accessLog': userspace.bool(false, 'Log one line for every connection', {
    flags: ['userspace-access-log'],
  }),
  'userspace.accessLogLevel': userspace.choice(
    ['debug', 'info', 'warn'],
    'info',
    'Level of these lines; debug lines appear with -v 4',
    { flags: ['userspace-access-log-level'] },
  ),
  takeover: userspace.bool(
    false,
    'Take the listeners over from a running process, which then ends; no connection is refused',
    { flags: ['takeover'] },
  ),
  'userspace.takeoverFolder': userspace.path(
    '/run/kube-proxy-ts',
    'Folder through which listeners are taken over; both processes must see it; empty: none',
    { flags: ['takeover-folder'] },
  ),

  'winuserspace.interface': windows.string(
    '',
    'Name of the interface that gets the addresses of Services (winuserspace); empty: "vEthernet (HNS ' +
      'Internal NIC)", or else the loopback interface',
    { flags: ['windows-interface'], known: 'here' },
  ),
}
