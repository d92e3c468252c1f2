import {
  iptablesRuleset,
  nftablesRuleset,
  userspaceRuleset,
  type UserspaceRuleset,
} from './rulesets.js'
import { walkIptables } from './iptables-walk.js'
import { walkNftables } from './nftables-walk.js'
import { IptablesPlanner } from '../modes/iptables/plan.js'
import { nftablesPlanner } from '../modes/nftables/plan.js'
import { UserspacePlanner } from '../modes/userspace/plan.js'
import { withHop } from './ways.js'
import type { DesiredState } from '../state/desired-state.js'
import type { ModeName, ModeSettings } from '../modes/mode.js'
import type { NodeSurroundings, Packet, Way } from './packet.js'

/** The modes whose rules can be walked. */
export type ExplainedMode = Exclude<ModeName, 'ipvs'>

export const explainedModes: readonly ExplainedMode[] = ['userspace', 'iptables', 'nftables']

/** Which ways the first packet of a connection may take under the rules of a mode. */
export function explainPacket(
  mode: ExplainedMode,
  state: DesiredState,
  settings: ModeSettings,
  packet: Packet,
): readonly Way[] {
  const node = { localAddresses: new Set(state.node.localAddresses) }
  switch (mode) {
    case 'iptables': {
      const facts = {
        randomFully: true,
        hasBpf: true,
        dropsInvalid: !settings.conntrackTcpBeLiberal,
      }
      const planner = new IptablesPlanner({ ...settings, ...facts })
      return walkIptables(iptablesRuleset(planner.plan(state)), packet, node)
    }
    case 'nftables':
      return walkNftables(nftablesRuleset(nftablesPlanner(settings)(state)), packet, node)
    case 'userspace': {
      const ruleset = userspaceRuleset(new UserspacePlanner(settings).plan(state))
      return walkUserspace(ruleset, packet, node)
    }
  }
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
    const where = 'listener of this process'
    if (spec.endpoints.length === 0) {
      const hop = { where, rule: '', why: `${spec.service}: no ${list} endpoints, so it is closed` }
      return [finished(way, hop, { end: 'rejected' })]
    }
    return spec.endpoints.map(({ ip, port, key }) => {
      const turn = `endpoint ${key} in its turn, one of ${spec.endpoints.length}`
      const why = `${spec.service}: ${turn}; a connection of this node's own is made to it`
      return finished(
        { ...way, hops: toListener },
        { where, rule: '', why },
        {
          probability: way.probability / spec.endpoints.length,
          // The backend sees this node, whoever asked (US21).
          packet: { ...way.packet, destination: ip, port, isMasqueraded: true },
          end: 'sent',
        },
      )
    })
  })
}

function finished(way: Way, hop: Way['hops'][number], change: Partial<Way>): Way {
  const { hops } = withHop({ ...way, end: undefined }, hop)
  return { ...way, ...change, hops }
}
