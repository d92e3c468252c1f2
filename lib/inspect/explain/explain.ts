import { iptablesRuleset, ipvsRuleset, nftablesRuleset, userspaceRuleset } from './rulesets.js'
import { planners } from '../../modes/planners.js'
import { walkIptables } from './iptables-walk.js'
import { walkIpvs } from './ipvs-walk.js'
import { walkNftables } from './nftables-walk.js'
import { ebpfSettings } from '../../modes/ebpf/settings.js'
import { nftablesSettings } from '../../modes/nftables/settings.js'
import type { EbpfPlan } from '../../modes/ebpf/plan.js'
import type { IptablesPlan } from '../../modes/iptables/plan.js'
import type { IpvsPlan } from '../../modes/ipvs/plan.js'
import type { NftablesPlan } from '../../modes/nftables/plan.js'
import type { UserspacePlan } from '../../modes/userspace/plan.js'
import { hostPort } from '../../state/ip.js'
import { isAmongPods } from '../../modes/userspace/datapath/source-rule.js'
import { loopbackOfNodePorts } from '../../state/node-view.js'
import { walkSockets } from './socket-walk.js'
import { viaListener, walkListeners, walkUserspace } from './listeners.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { Config, ModeName } from '../../config/config.js'
import type { FamilyPlan } from '../../modes/mode.js'
import type { Lacks, NodeSurroundings, Packet, Way } from './packet.js'

/** A packet, and where it is sent. */
interface AskedPacket {
  readonly state: DesiredState
  readonly config: Config
  readonly packet: Packet
  /** Tells which rules the kernel lacks; the packet does not meet them. */
  readonly lacks?: Lacks | undefined
}

/**
 * The ways that the first packet of a connection may take through the rules of a mode. With
 * `lacks` the packet meets only the rules that the kernel has.
 */
export function explainPacket(
  mode: ModeName,
  state: DesiredState,
  config: Config,
  packet: Packet,
  lacks?: Lacks,
): readonly Way[] {
  const plan = planners[mode](config).plan(state)
  return explainPlan(mode, plan, { state, config, packet, lacks })
}

/** Like {@link explainPacket}, with a plan that the mode has already made of the state. */
export function explainPlan(mode: ModeName, plan: FamilyPlan, asked: AskedPacket): readonly Way[] {
  return explainerOf(mode, plan)(asked)
}

/** Tells the ways of any number of packets through one plan, whose rules it reads once. */
export type Explainer = (asked: AskedPacket) => readonly Way[]

export function explainerOf(mode: ModeName, plan: FamilyPlan): Explainer {
  let walk: Walk | undefined
  return (asked) => {
    const { state, lacks } = asked
    const node = { localAddresses: new Set(state.node.localAddresses), lacks }
    return (walk ??= walks[mode](plan))({ ...asked, node })
  }
}

interface WalkedPacket extends AskedPacket {
  readonly node: NodeSurroundings
}

type Walk = (asked: WalkedPacket) => readonly Way[]

/** The type of a method, which may ask for the plan of its own mode. */
type WalkOf = { of(plan: FamilyPlan): Walk }['of']

const walks: Readonly<Record<ModeName, WalkOf>> = {
  iptables: (plan: IptablesPlan) => {
    const rules = iptablesRuleset(plan)
    return ({ packet, node }) => walkIptables(rules, packet, node)
  },
  nftables: (plan: NftablesPlan) => {
    const rules = nftablesRuleset(plan)
    return ({ state, config, packet, node }) => {
      const ways = walkNftables(rules, packet, node)
      return nftablesSettings(config).localhostNodePorts
        ? ways.flatMap((way) => throughLocalhost(way, state))
        : ways
    }
  },
  ebpf: ({ sockets, packets }: EbpfPlan) => {
    let walk: Walk | undefined
    return (asked) => {
      const { config, packet, node } = asked
      const isOfPod = packet.inInterface !== undefined
      const isLeft = isOfPod && ebpfSettings(config).sockets === 'node'
      const atSocket = isLeft ? undefined : walkSockets(sockets, packet, node)
      return atSocket ?? (walk ??= walks.nftables(packets))(asked)
    }
  },
  ipvs: (plan: IpvsPlan) => {
    const rules = ipvsRuleset(plan)
    return ({ state, packet, node }) =>
      markedAnswers(walkIpvs(rules, packet, node), { state, packet })
  },
  userspace: (plan: UserspacePlan) => {
    const rules = userspaceRuleset(plan)
    return ({ state, config, packet, node }) =>
      // With this setting there are no rules: the listeners listen at the addresses of Services.
      config.userspace.portals === 'addresses'
        ? walkListeners(plan, state, packet, node)
        : walkUserspace(rules, state, packet, node)
  },
  winuserspace:
    (plan: UserspacePlan) =>
    ({ state, packet, node }) =>
      walkListeners(plan, state, packet, node),
}

/**
 * Marks the ways whose endpoint answers the client directly. Only ipvs mode has them: it forwards
 * outside clients to other nodes without masquerading them.
 */
function markedAnswers(
  ways: readonly Way[],
  { state, packet }: { readonly state: DesiredState; readonly packet: Packet },
): readonly Way[] {
  const { source, inInterface } = packet
  const pods = state.node.localTraffic
  if (inInterface === undefined || isAmongPods(pods, source, inInterface)) return ways
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

/**
 * TCP node ports on the loopback address have no rule. A listener of nftables mode answers them.
 */
function throughLocalhost(way: Way, state: DesiredState): readonly Way[] {
  const { destination, port, protocol } = way.packet
  const isAsked = destination === loopbackOfNodePorts(state)
  if (way.end !== 'local' || protocol !== 'TCP' || !isAsked) return [way]
  const service = [...state.services.values()].find(
    (each) => each.nodePort === port && each.protocol === 'TCP',
  )
  if (!service) return [way]
  const choice = { endpoints: service.clusterEndpoints, word: 'round-robin' } as const
  return viaListener(way, service.portName, choice)
}
