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
import { ipvsSettings } from '../../modes/ipvs/settings.js'
import { walkIptables } from './iptables-walk.js'
import { walkIpvs } from './ipvs-walk.js'
import { walkNftables } from './nftables-walk.js'
import { iptablesPlanner, offlineFacts } from '../../modes/iptables/plan.js'
import { iptablesSettings } from '../../modes/iptables/settings.js'
import { socketPlanner } from '../../modes/ebpf/plan.js'
import { ebpfSettings } from '../../modes/ebpf/settings.js'
import { nftablesPlanner } from '../../modes/nftables/plan.js'
import { nftablesSettings } from '../../modes/nftables/settings.js'
import { userspacePlanner } from '../../modes/userspace/plan.js'
import { userspaceSettings } from '../../modes/userspace/settings.js'
import { cidrContains, hostPort, parseIp } from '../../state/ip.js'
import { walkSockets } from './socket-walk.js'
import { viaListener, walkListeners, walkUserspace } from './listeners.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { Config, ModeName } from '../../config/config.js'
import type { Packet, Way } from './packet.js'

/**
 * The ways that the first packet of a connection may take through the rules of a mode. With
 * `lacks` only the rules that the kernel has count.
 */
export function explainPacket(
  mode: ModeName,
  state: DesiredState,
  config: Config,
  packet: Packet,
  lacks: Lacks = () => false,
): readonly Way[] {
  const node = { localAddresses: new Set(state.node.localAddresses) }
  switch (mode) {
    case 'iptables': {
      const plan = iptablesPlanner({ ...iptablesSettings(config), ...offlineFacts })(state)
      const rules = iptablesPresent(iptablesRuleset(plan), lacks)
      return walkIptables(rules, packet, node)
    }
    case 'ebpf': {
      const plan = socketPlanner(ebpfSettings(config))(state)
      const atSocket = walkSockets(plan, packet, node, lacks)
      return atSocket ?? explainPacket('nftables', state, config, packet, lacks)
    }
    case 'nftables': {
      const settings = nftablesSettings(config)
      const ruleset = nftablesRuleset(nftablesPlanner(settings)(state))
      const ways = walkNftables(nftablesPresent(ruleset, lacks), packet, node)
      return settings.localhostNodePorts
        ? ways.flatMap((way) => throughLocalhost(way, state))
        : ways
    }
    case 'ipvs':
      return markedAnswers(
        walkIpvs(
          ipvsPresent(ipvsRuleset(ipvsPlanner(ipvsSettings(config))(state)), lacks),
          packet,
          node,
        ),
        { state, packet },
      )
    case 'userspace': {
      const plan = userspacePlanner(userspaceSettings(config))(state)
      // With this setting there are no rules: the listeners listen at the addresses of Services.
      if (config.userspace.portals === 'addresses') return walkListeners(plan, state, packet, lacks)
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

/**
 * TCP node ports on the loopback address have no rule. A listener of nftables mode answers them.
 */
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
