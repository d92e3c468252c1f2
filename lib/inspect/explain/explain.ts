import {
  iptablesPresent,
  iptablesRuleset,
  ipvsPresent,
  ipvsRuleset,
  nftablesPresent,
  nftablesRuleset,
  userspaceRuleset,
  type Lacks,
} from './rulesets.js'
import { ipvsPlanner } from '../../modes/ipvs/plan.js'
import { walkIptables } from './iptables-walk.js'
import { walkIpvs } from './ipvs-walk.js'
import { walkNftables } from './nftables-walk.js'
import { offlinePlanner } from '../../modes/iptables/plan.js'
import { nftablesPlanner } from '../../modes/nftables/plan.js'
import { UserspacePlanner } from '../../modes/userspace/plan.js'
import { cidrContains, hostPort, parseIp } from '../../state/ip.js'
import { viaListener, walkListeners, walkUserspace } from './listeners.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { ModeName, ModeSettings } from '../../modes/mode.js'
import type { Packet, Way } from './packet.js'

/** The modes whose rules can be walked. */
export type ExplainedMode = ModeName

export const explainedModes: readonly ExplainedMode[] = [
  'userspace',
  'iptables',
  'ipvs',
  'nftables',
]

/**
 * The ways that the first packet of a connection may take through the rules of a mode. With
 * `lacks` only the rules that the kernel has count.
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
      const plan = new UserspacePlanner(settings).plan(state)
      // In this setting no rule leads to the listeners; they listen at the addresses of Services.
      if (settings.userspace.portals === 'addresses')
        return walkListeners(plan, state, packet, lacks)
      const ruleset = userspaceRuleset(plan)
      const rules = iptablesPresent(ruleset.rules, lacks)
      return walkUserspace({ ...ruleset, rules }, packet, node)
    }
  }
}

/** Only ipvs mode forwards outside clients to other nodes without masquerading them. */
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

/** A listener of nftables mode answers TCP node ports on the loopback address; no rule does. */
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
