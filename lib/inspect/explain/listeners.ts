import { hostPort } from '../../state/ip.js'
import { isLocal } from './iptables-rule.js'
import { walkIptables } from './iptables-walk.js'
import { chancesOf } from './chances.js'
import { withHop } from './ways.js'
import { answersAt, hasAddress } from './question.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { Protocol } from '../../state/names.js'
import { holds, type NodeSurroundings, type Packet, type Way } from './packet.js'
import { isAnyAddress, type Place } from '../../kernel/place.js'
import { listenerText, placeAt } from '../../modes/userspace/portals/address-differences.js'
import type { ListenerSpec } from '../../modes/userspace/datapath/data-path.js'
import type { Balance } from '../../state/balance.js'
import { isAmongPods, isLeft, type SourceRule } from '../../modes/userspace/datapath/source-rule.js'
import type { UserspacePlan } from '../../modes/userspace/plan.js'
import type { UserspaceRuleset } from './rulesets.js'

/** Walks through the rules to a listener, which chooses the endpoint. */
export function walkUserspace(
  { rules, listeners }: UserspaceRuleset,
  state: DesiredState,
  packet: Packet,
  node: NodeSurroundings,
): readonly Way[] {
  return walkIptables(rules, packet, node).flatMap((way): readonly Way[] => {
    const listener = listeners.get(way.packet.port)
    if (!listener || way.end === 'dropped' || way.end === 'rejected') return [way]
    const { spec, list } = listener
    const sight = sightOf(spec.source, packet, node)
    return viaListener(way, `${spec.service} (${list})`, choiceOf(spec, state), sight)
  })
}

/** Without rules a connection reaches a listener only at the address of that listener. */
export function walkListeners(
  plan: UserspacePlan,
  state: DesiredState,
  packet: Packet,
  surroundings: NodeSurroundings,
): readonly Way[] {
  const { protocol, destination, port } = packet
  const virtual = [...plan.services.values()].flatMap(({ addresses }) => addresses)
  const localAddresses = new Set([...surroundings.localAddresses, ...virtual])
  const node = { ...surroundings, localAddresses }
  const isThere = (address: string) =>
    address === destination || (isAnyAddress(address) && isLocal(destination, node))
  const found = [...plan.services.values()]
    .flatMap(({ listeners }) => listeners)
    .find(({ spec }) => spec.protocol === protocol && spec.port === port && isThere(spec.address))
  const at = `${protocol} ${hostPort(destination, port)}`
  const way: Way = { probability: 1, packet, hops: [], rules: 0, chains: 0, end: 'local' }
  if (!found) {
    const owner = ownerOf(state, destination)
    if (owner === undefined) return walkIptables(new Map(), packet, node)
    const why = `nothing listens at ${at}: ${owner} has no endpoint for it, so the kernel refuses`
    const hop = { path: [placeAt(destination)], rule: '', why }
    return [finished(way, hop, { end: 'rejected' })]
  }
  const place = placeAt(found.spec.address)
  const rule = listenerText(found.spec)
  const hopHere = { path: [place], item: { place, text: rule }, rule }
  if (!holds(node, { place })) return walkIptables(new Map(), packet, node)
  if (!holds(node, hopHere.item)) {
    const why = `nothing listens at ${at} now, so the kernel refuses`
    return [finished(way, { ...hopHere, why }, { end: 'rejected' })]
  }
  const hop = {
    ...hopHere,
    why: `no rule is needed: this process listens at the address of ${found.spec.service} itself`,
  }
  const here = finished(way, hop, {})
  return viaListener(here, `${found.spec.service} (${found.list})`, choiceOf(found.spec, state))
}

function ownerOf({ services }: DesiredState, ip: string): string | undefined {
  return [...services.values()].find((each) => hasAddress(each, ip))?.portName
}

/** Among which endpoints a listener chooses, and how. */
interface ListenerChoice {
  readonly endpoints: readonly (Seer & { readonly weight: number })[]
  readonly word: Balance
}

function choiceOf(
  { endpoints, balance, protocol }: ListenerSpec,
  state: DesiredState,
): ListenerChoice {
  const weights = new Map(balance?.weights)
  const isOwn = leadsBack(state, protocol)
  const weighted = endpoints
    .filter((target) => !isOwn(target))
    .map((target) => ({ ...target, weight: weights.get(target.key) ?? 1 }))
  return { endpoints: weighted, word: balance?.word ?? 'round-robin' }
}

/** Tells whether an endpoint is an address of a Service: a proxy would reach itself there. */
export function leadsBack(
  state: DesiredState,
  protocol: Protocol,
): (endpoint: Pick<Seer, 'ip' | 'port'>) => boolean {
  const services = [...state.services.values()].filter((each) => each.protocol === protocol)
  return ({ ip, port }) => services.some((each) => answersAt(each, state, ip, port))
}

/** An endpoint of a listener. */
interface Seer {
  readonly ip: string
  readonly port: number
  readonly key: string
  readonly isLocal?: boolean
}

/** Which endpoints see the client's address, as far as rules and objects say; see SourceKeeper. */
function sightOf(
  rule: SourceRule | undefined,
  packet: Packet,
  node: NodeSurroundings,
): (endpoint: Seer) => Sight {
  const { source, inInterface = '', destination, port, protocol } = packet
  if (!rule || isLocal(source, node)) return hidden
  const isPod = isAmongPods(rule.pods, source, inInterface)
  // The kernel does not tell a listener which address a datagram asked for.
  const asked = protocol === 'UDP' ? undefined : { ip: destination, port }
  if (!isLeft(rule, isPod, asked)) return hidden
  const onBridge: Sight = {
    isMasqueraded: false,
    isHiddenOnBridge: rule.avoidsBridges ? 'always' : 'if filtered',
  }
  return ({ ip, isLocal = false }) => {
    if (ip === source || !(isPod || isLocal)) return hidden()
    return isPod && isLocal ? onBridge : { isMasqueraded: false }
  }
}

type Sight = Pick<Packet, 'isMasqueraded' | 'isHiddenOnBridge'>

function hidden(): Sight {
  return { isMasqueraded: true }
}

/** A listener of this process takes the connection, and makes one of its own to an endpoint. */
export function viaListener(
  way: Way,
  service: string,
  { endpoints, word }: ListenerChoice,
  sight: (endpoint: Seer) => Sight = hidden,
): readonly Way[] {
  const path: readonly Place[] = [{ kind: 'listeners', name: '' }]
  if (endpoints.length === 0) {
    const hop = { path, rule: '', why: `${service}: no endpoint that it can use, so it is closed` }
    return [finished(way, hop, { end: 'rejected' })]
  }
  return chancesOf(endpoints, word, way.packet.source).map((chance) => {
    const { ip, port, key } = chance.endpoint
    const seen = sight(chance.endpoint)
    const how = seen.isMasqueraded ? 'of its own' : "with the client's address"
    const why = `${service}: endpoint ${key} ${chance.why}; this node makes a connection ${how} to it`
    return finished(
      way,
      { path, rule: '', why },
      {
        probability: way.probability * chance.probability,
        // The endpoint sees this node, unless the listener keeps the client's address (US21).
        packet: { ...way.packet, destination: ip, port, isDnated: true, ...seen },
        end: 'sent',
      },
    )
  })
}

function finished(way: Way, hop: Way['hops'][number], change: Partial<Way>): Way {
  const { hops } = withHop({ ...way, end: undefined }, hop)
  return { ...way, ...change, hops }
}
