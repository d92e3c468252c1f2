import { connectPlace } from '../../modes/ebpf/names.js'
import { entryText } from '../../modes/ebpf/render.js'
import { frontendId, type Frontend, type SocketPlan } from '../../modes/ebpf/plan.js'
import { drawn } from './drawn.js'
import { hostPort } from '../../state/ip.js'
import { holds, type NodeSurroundings, type Packet, type Way } from './packet.js'

/** Before the first packet, no rule is compared with anything. */
const noRules = { rules: 0, chains: 0 }

/**
 * How the socket programs translate a connection before its first packet exists. Undefined if they
 * leave the connection to the rules for packets.
 */
export function walkSockets(
  plan: SocketPlan,
  packet: Packet,
  node: NodeSurroundings,
): readonly Way[] | undefined {
  if (packet.isSocketHere !== true) return undefined
  const frontend = frontendFor(plan, packet)
  if (!frontend) return undefined
  const lists = plan.parts.get(frontend.owner)?.targets ?? []
  const list = lists.find(({ id }) => id === frontend.targets)
  if (!list || list.verdict === 'leave') return undefined
  const text = entryText(frontend, list)
  const item = { place: connectPlace, text }
  if (!holds(node, { place: connectPlace }) || !holds(node, item)) return undefined
  const hop = { path: [connectPlace], item, rule: text }
  const isLeft = packet.protocol === 'UDP' && leavesDatagrams(plan, frontend, packet)
  const calls = packet.protocol === 'UDP' && !isLeft ? 'connect() or sendto()' : 'connect()'
  if (list.verdict === 'refuse') {
    const why = `no endpoints: ${calls} fails with ECONNREFUSED, and no packet is sent`
    return [{ ...noRules, probability: 1, packet, hops: [{ ...hop, why }], end: 'rejected' }]
  }
  const affinity =
    list.affinitySeconds > 0 ? `; the same for a client during ${list.affinitySeconds} s` : ''
  const rest = isLeft ? '; datagrams by sendto() are left to rules' : ''
  const by = list.draw === 'turn' ? 'turn' : 'chance'
  const isByFewest = list.draw === 'fewest' && list.endpoints.length > 1
  return drawn(list.endpoints, by, packet).map(({ of: { ip, port }, share, how }) => {
    const fewest = isByFewest ? ': of two, the one at which fewer connections are open' : ''
    const count = `${how}${fewest}${affinity}`
    const why = `translated at ${calls}: the socket goes to ${hostPort(ip, port)}, ${count}, and its packets need no NAT${rest}`
    return {
      ...noRules,
      probability: share,
      packet: { ...packet, destination: ip, port, isDnated: true },
      hops: [{ ...hop, why }],
      end: node.localAddresses.has(ip) ? 'local' : 'sent',
    }
  })
}

/** A datagram to a place where clients may be is left to rules, because it may be an answer. */
function leavesDatagrams(
  { nodeAddresses }: SocketPlan,
  { isExternal }: Frontend,
  { destination }: Packet,
): boolean {
  const isHostOnly = nodeAddresses.some((each) => each.hostOnly && each.address === destination)
  return isExternal && !isHostOnly
}

function frontendFor(plan: SocketPlan, packet: Packet): Frontend | undefined {
  const { protocol, destination, port, inInterface } = packet
  if (protocol === 'SCTP') return undefined
  const at = (address: string | undefined) =>
    plan.frontends.get(frontendId({ address, protocol, port }))?.[0]
  const own = plan.nodeAddresses.find(({ address }) => address === destination)
  const isNode = own !== undefined && (!own.hostOnly || inInterface === undefined)
  return at(destination) ?? (isNode ? at(undefined) : undefined)
}
