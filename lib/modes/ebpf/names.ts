import type { Place } from '../../kernel/place.js'

/** Names of what this mode puts into the kernel. */

/** Programs are called this and their hook; the kernel keeps 15 characters. */
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
} as const

/** Below a mounted bpffs; the second folder is the version of what layout.ts says. */
export const pinFolders = { own: 'kube-proxy-ts', version: 'v1' } as const

/** The annotation `kube-proxy-ts/sockets: "off"` leaves a Service to the packet path. */
export const optOut = { option: 'sockets', value: 'off' } as const

/** Socket programs of others, which translate the same addresses. */
export const otherProxies: readonly {
  readonly owner: string
  readonly prefixes: readonly string[]
}[] = [
  { owner: 'Cilium', prefixes: ['cil_sock', 'sock4_', 'sock6_'] },
  { owner: 'Calico', prefixes: ['calico_'] },
]

/** Where the socket programs translate; differences and `explain` are joined by it. */
export const connectPlace: Place = { kind: 'call', name: 'connect' }
