import type { SocketAddress } from '../../../kernel/sockets/socket-address.js'
import type { LocalTraffic } from '../../../state/desired-state.js'
import { cidrContains, parseIp } from '../../../state/ip.js'

/** What the kernel modes do with the client's address, for the listener of one endpoint list. */
export interface SourceRule {
  readonly clusterIp: SocketAddress
  /** How pods are recognised. Behind a ClusterIP all other clients are hidden. */
  readonly pods: LocalTraffic
  /** `--masquerade-all`: behind a ClusterIP every client is hidden. */
  readonly masqueradesAll: boolean
  /** For clients of node ports, external and load-balancer addresses; `none`: there are none. */
  readonly external: 'kept' | 'hidden' | 'none'
  /** The listener is that of the endpoints on this node. */
  readonly isLocalList: boolean
  /** `auto`: clients are hidden from endpoints on their own bridge. */
  readonly avoidsBridges: boolean
}

/** The warning when a socket cannot have the client's address. */
export function notKept(service: string, code: string): string {
  return `the address of a client of ${service} cannot be kept (${code}): the endpoint sees this node`
}

/**
 * Recognises pods as the rules of the kernel modes do. Packets of the client come in at `device`.
 */
export function isAmongPods(pods: LocalTraffic, client: string, device: string): boolean {
  switch (pods.by) {
    case 'none':
      return false
    case 'interface':
      return device === pods.name
    case 'interface-prefix':
      return device.startsWith(pods.prefix)
    case 'cidrs': {
      const ip = parseIp(client)
      return ip !== undefined && pods.cidrs.some((cidr) => cidrContains(cidr, ip))
    }
  }
}

/** Whether the kernel modes leave the client's address; `asked` is undefined when not known. */
export function isLeft(
  rule: SourceRule,
  isPod: boolean,
  asked: SocketAddress | undefined,
): boolean {
  const { clusterIp, external, pods, masqueradesAll, isLocalList } = rule
  const behindClusterIp = !masqueradesAll && (isPod || pods.by === 'none')
  if (external === 'none') return behindClusterIp
  if (asked) {
    const isClusterIp = asked.ip === clusterIp.ip && asked.port === clusterIp.port
    return isClusterIp ? behindClusterIp : external === 'kept'
  }
  // A datagram may be for any address of the Service. Outsiders are sent to the local list only
  // by external addresses.
  return isPod ? !masqueradesAll || external === 'kept' : isLocalList && external === 'kept'
}
