/** All names that this mode uses in the kernel. */

/** The original's chains (US01). */
export const natChains = {
  portalsContainer: 'KUBE-PORTALS-CONTAINER',
  portalsHost: 'KUBE-PORTALS-HOST',
  nodePortContainer: 'KUBE-NODEPORT-CONTAINER',
  nodePortHost: 'KUBE-NODEPORT-HOST',
} as const

/** Whether rules of the chain lead to listeners. A long chain has sub-chains, named after it. */
export function isPortalChain(chain: string): boolean {
  return Object.values(natChains).some((name) => chain.startsWith(name))
}

export const filterChains = {
  /** Accepts health checks. Node ports are among the listeners below (US11). */
  nonLocal: 'KUBE-NODEPORT-NON-LOCAL',
  /** Ours: refuses or drops packets to a Service that has no endpoint for them, by its policies. */
  refuse: 'KUBE-PORTALS-REFUSE',
  /** Ours: how each of these is turned away. With `--flows` the proxy is told first. */
  refused: 'KUBE-PORTALS-REFUSED',
  dropped: 'KUBE-PORTALS-DROPPED',
  blocked: 'KUBE-PORTALS-BLOCKED',
  /** Ours: a rule for each listener, which leads to the next chain. */
  direct: 'KUBE-PORTALS-DIRECT',
  /** Ours: accepts packets to a listener that were redirected. Others would bypass policies. */
  listener: 'KUBE-PORTALS-LISTENER',
} as const

/**
 * The chain that stays while connections drain. The kernel translates their addresses only as long
 * as some rule needs connection tracking.
 */
export const drainChain = 'KUBE-PORTALS-DRAIN'

export type ChainName =
  | (typeof natChains)[keyof typeof natChains]
  | (typeof filterChains)[keyof typeof filterChains]

export const portalsComment = 'handle ClusterIPs; NOTE: this must be before the NodePort rules'
export const nodePortComment =
  'handle service NodePorts; NOTE: this must be the last rule in the chain'
export const nonLocalComment = 'Ensure that non-local NodePort traffic can flow'
export const directComment = 'kubernetes proxy ports are reached through their services only'
export const refuseComment = 'kubernetes service portals without endpoints'

/** The device with the addresses of Services where there are no rules. */
export const deviceName = 'kube-portals0'
/** The metric of such addresses. On `lo` it marks them as ours, also after a crash. */
export const addressMark = 27_504

/** Ours, in table mangle: they mark answers to sockets that have the address of a client. */
export const sourceChains = {
  PREROUTING: 'KUBE-PORTALS-SOURCE',
  OUTPUT: 'KUBE-PORTALS-SOURCE-HOST',
} as const
export const sourceComment = 'answers to clients whose address endpoints see'
/**
 * The routing table for marked packets. Its priority puts it before the routing rules that other
 * programs have for addresses of pods.
 */
export const sourceDiversion = { mark: 0x2000, table: 27_504, priority: 50 } as const
