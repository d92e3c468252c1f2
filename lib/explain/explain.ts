import {
  iptablesPresent,
  iptablesRuleset,
  ipvsPresent,
  ipvsRuleset,
  nftablesPresent,
  nftablesRuleset,
  userspaceRuleset,
  type Lacks,
  type UserspaceRuleset,
} from './rulesets.js'
import { ipvsPlanner } from '../modes/ipvs/plan.js'
import { walkIptables } from './iptables-walk.js'
import { walkIpvs } from './ipvs-walk.js'
import { walkNftables } from './nftables-walk.js'
import { offlinePlanner } from '../modes/iptables/plan.js'
import { nftablesPlanner } from '../modes/nftables/plan.js'
import { UserspacePlanner } from '../modes/userspace/plan.js'
import { cidrContains, hostPort, parseIp } from '../state/ip.js'
import { withHop } from './ways.js'
import type { DesiredState } from '../state/desired-state.js'
import type { ModeName, ModeSettings } from '../modes/mode.js'
import type { NodeSurroundings, Packet, Way } from './packet.js'

/** The modes whose rules can be walked. */
export type ExplainedMode = ModeName

export const explainedModes: readonly ExplainedMode[] = [
  'userspace',
  'iptables',
  'ipvs',
  'nftables',
]

/**
 * Which ways the first packet of a connection may take under the rules of a mode, or under those
 * of them that the kernel has.
 */
export function explainPacket(
  mode: ExplainedMode,
  state: DesiredState,
  settings: ModeSettings,
  packet: Packet,
  lacks: Lacks = () => false,
): readonly Way[] {
  const node = { localAddresses: new Set(state.node.localAddresses) }
  switch (mode) {
    case 'iptables': {
      const plan = offlinePlanner(settings).plan(state)
      const rules = iptablesPresent(iptablesRuleset(plan), lacks)
      return walkIptables(rules, packet, node)
    }
    case 'nftables': {
      const ruleset = nftablesRuleset(nftablesPlanner(settings)(state))
      const ways = walkNftables(nftablesPresent(ruleset, lacks), packet, node)
      return settings.localhostNodePorts
        ? ways.flatMap((way) => throughLocalhost(way, state))
        : ways
    }
    case 'ipvs':
      return markedAnswers(
        walkIpvs(ipvsPresent(ipvsRuleset(ipvsPlanner(settings)(state)), lacks), packet, node),
        { state, packet },
      )
    case 'userspace': {
      const ruleset = userspaceRuleset(new UserspacePlanner(settings).plan(state))
      const symbol = (text: string) => text.replace(/\b1\d{5}\b/g, 'PROXY-PORT')
      const has = iptablesPresent(ruleset.rules, (place, text) => lacks(place, symbol(text)))
      return walkUserspace({ ...ruleset, rules: has }, packet, node)
    }
  }
}

/** Only this mode sends strangers on to other nodes as they are. */
function markedAnswers(
  ways: readonly Way[],
  { state, packet }: { readonly state: DesiredState; readonly packet: Packet },
): readonly Way[] {
  if (packet.inInterface === undefined || isFromPod(packet, state)) return ways
  const elsewhere = new Set<string>()
  for (const { servingEndpoints } of state.services.values()) {
    for (const { key, isLocal } of servingEndpoints) if (!isLocal) elsewhere.add(key)
  }
  return ways.map((way) => {
    const { destination, port, isDnated, isMasqueraded } = way.packet
    const isPast = way.end === 'sent' && isDnated && !isMasqueraded
    return isPast && elsewhere.has(hostPort(destination, port))
      ? { ...way, isAnsweredPast: true as const }
      : way
  })
}

function isFromPod({ source, inInterface = '' }: Packet, { node }: DesiredState): boolean {
  const pods = node.localTraffic
  const ip = parseIp(source)
  switch (pods.by) {
    case 'cidrs':
      return ip !== undefined && pods.cidrs.some((cidr) => cidrContains(cidr, ip))
    case 'interface':
      return inInterface === pods.name
    case 'interface-prefix':
      return inInterface.startsWith(pods.prefix)
    case 'none':
      return false
  }
}

/** TCP node ports on the loopback address: no rule, but a listener of the mode answers there. */
function throughLocalhost(way: Way, { services, node }: DesiredState): readonly Way[] {
  const { destination, port, protocol, family } = way.packet
  const loopback = family === 'IPv4' ? '127.0.0.1' : '::1'
  const isAsked = destination === loopback && node.nodePorts.addresses.includes(loopback)
  if (way.end !== 'local' || protocol !== 'TCP' || !isAsked) return [way]
  const service = [...services.values()].find(
    (each) => each.nodePort === port && each.protocol === 'TCP',
  )
  return service ? viaListener(way, service.portName, service.clusterEndpoints) : [way]
}

/** The rules lead to a listener; who is asked next is decided there. */
function walkUserspace(
  { rules, listeners }: UserspaceRuleset,
  packet: Packet,
  node: NodeSurroundings,
): readonly Way[] {
  return walkIptables(rules, packet, node).flatMap((way): readonly Way[] => {
    const listener = listeners.get(way.packet.port)
    if (!listener || way.end === 'dropped' || way.end === 'rejected') return [way]
    const { spec, list } = listener
    const symbol = (text: string) => text.replaceAll(String(way.packet.port), 'PROXY-PORT')
    const toListener = way.hops.map((hop) => ({
      ...hop,
      rule: symbol(hop.rule),
      why: symbol(hop.why),
    }))
    return viaListener({ ...way, hops: toListener }, `${spec.service} (${list})`, spec.endpoints)
  })
}

/** A listener of this process takes the connection, and makes one of its own to an endpoint. */
function viaListener(
  way: Way,
  service: string,
  endpoints: readonly { readonly ip: string; readonly port: number; readonly key: string }[],
): readonly Way[] {
  const where = 'listener of this process'
  if (endpoints.length === 0) {
    const hop = { where, rule: '', why: `${service}: no endpoints, so it is closed` }
    return [finished(way, hop, { end: 'rejected' })]
  }
  return endpoints.map(({ ip, port, key }) => {
    const turn = `endpoint ${key} in its turn, one of ${endpoints.length}`
    const why = `${service}: ${turn}; a connection of this node's own is made to it`
    return finished(
      way,
      { where, rule: '', why },
      {
        probability: way.probability / endpoints.length,
        // The backend sees this node, whoever asked (US21).
        packet: { ...way.packet, destination: ip, port, isDnated: true, isMasqueraded: true },
        end: 'sent',
      },
    )
  })
}

function finished(way: Way, hop: Way['hops'][number], change: Partial<Way>): Way {
  const { hops } = withHop({ ...way, end: undefined }, hop)
  return { ...way, ...change, hops }
}
