import type { Place } from '../../kernel/place.js'

/** Names of what this mode puts into the kernel. */

/** The beginning of a program's name. The hook follows. The kernel keeps 15 characters. */
export const programPrefix = 'kpts_'

export const mapNames = {
  frontends: 'kpts_frontends',
  services: 'kpts_services',
  backends: 'kpts_backends',
  members: 'kpts_members',
  connections: 'kpts_connections',
  datagrams: 'kpts_datagrams',
  affinity: 'kpts_affinity',
  udpSockets: 'kpts_udp_sockets',
  open: 'kpts_open',
  counted: 'kpts_counted',
  statistics: 'kpts_statistics',
  refusals: 'kpts_refusals',
  begun: 'kpts_begun',
  flows: 'kpts_flows',
  flowsLost: 'kpts_flows_lost',
  network: 'kpts_network',
} as const

/**
 * Folders below a mounted bpffs: `kube-proxy-ts/netns-COOKIE/v1`. The last is the version of the
 * layout in layout.ts.
 */
export const pinFolders = { own: 'kube-proxy-ts', network: 'netns-', version: 'v1' } as const

/** The names of other proxies' socket programs, which translate the same addresses. */
export const otherProxies: readonly {
  readonly owner: string
  readonly prefixes: readonly string[]
}[] = [
  { owner: 'Cilium', prefixes: ['cil_sock', 'sock4_', 'sock6_'] },
  { owner: 'Calico', prefixes: ['calico_'] },
]

/** The place where socket programs translate. It joins differences with hops of `explain`. */
export const connectPlace: Place = { kind: 'call', name: 'connect' }
