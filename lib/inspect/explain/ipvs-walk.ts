import { hostPort } from '../../state/ip.js'
import { finish, start, through, withHop, type Branch } from './ways.js'
import { IptablesWalker, type IptablesRuleset } from './iptables-walk.js'
import { isLocal } from './iptables-rule.js'
import { oneOf } from './chances.js'
import {
  devicePlace,
  realItem,
  serverItem,
  serverPlace,
  setPlace,
} from '../../modes/ipvs/differences.js'
import { protocolOptions } from '../../modes/ipvs/render.js'
import { serverId, type PlannedServer, type RealServer } from '../../modes/ipvs/resource.js'
import type { Place } from '../../kernel/place.js'
import { holds, type IpSetContent, type NodeSurroundings, type Packet, type Way } from './packet.js'

/** The parts of ipvs mode in the kernel that a packet meets. */
export interface IpvsRuleset {
  readonly rules: IptablesRuleset
  /** By kernel name. */
  readonly sets: ReadonlyMap<string, IpSetContent>
  /** By `serverId`. */
  readonly servers: ReadonlyMap<string, PlannedServer>
  /** Addresses on the dummy device, which the node treats as its own. */
  readonly addresses: ReadonlySet<string>
}

/** Walks the first packet of a connection through rules and virtual servers, as the kernel would. */
export function walkIpvs(
  ruleset: IpvsRuleset,
  sent: Packet,
  surroundings: NodeSurroundings,
): readonly Way[] {
  const { rules, servers } = ruleset
  const held = (place: Place, texts: ReadonlySet<string>) =>
    new Set([...texts].filter((text) => holds(surroundings, { place, text })))
  const addresses = held(devicePlace, ruleset.addresses)
  const ipSets = new Map(
    Array.from(ruleset.sets, ([name, { type, members }]) => [
      name,
      { type, members: held(setPlace(name), members) },
    ]),
  )
  const localAddresses = new Set([...surroundings.localAddresses, ...addresses])
  const node = { ...surroundings, ipSets, localAddresses }
  const walker = new IptablesWalker(rules, node)
  const isOwn = sent.inInterface === undefined
  // The node sends to an address of its own from the same address (S35).
  const packet =
    isOwn && addresses.has(sent.destination) ? { ...sent, source: sent.destination } : sent
  let branches = start(packet)
  if (isOwn) {
    // IPVS takes the node's own packets before the filter table sees them (IP23).
    branches = walker.table(branches, 'mangle', 'OUTPUT')
    branches = walker.table(branches, 'nat', 'OUTPUT')
  } else {
    branches = walker.table(branches, 'nat', 'PREROUTING')
    branches = through(branches, (branch) =>
      isLocal(branch.packet.destination, node)
        ? walker.table([branch], 'filter', 'INPUT')
        : walker.table([branch], 'filter', 'FORWARD'),
    )
  }
  branches = through(branches, (branch) => balance(branch, servers, node))
  branches = through(branches, (branch) => {
    if (!isLocal(branch.packet.destination, node) || branch.packet.isDnated) {
      return walker.table([branch], 'nat', 'POSTROUTING')
    }
    // Without a virtual server, a packet of the node to itself comes in again.
    return isOwn ? walker.table([branch], 'filter', 'INPUT') : [branch]
  })
  return finish(branches, ({ destination, isDnated }) => !isDnated && isLocal(destination, node))
}

/** Passes the packet to the virtual server of its address, if there is one. */
function balance(
  branch: Branch,
  servers: IpvsRuleset['servers'],
  node: NodeSurroundings,
): readonly Branch[] {
  const { packet } = branch
  const { destination: ip, port, protocol } = packet
  const planned = servers.get(serverId({ ip, port, protocol }))
  if (!planned) return [branch]
  const { scheduler, persistenceSeconds } = planned.server
  const at = `${protocolOptions[protocol]} ${hostPort(ip, port)}`
  const place = serverPlace(planned.server)
  const item = { place, text: serverItem(planned.server) }
  // With another scheduler it still takes the packet.
  if (!holds(node, { place })) return [branch]
  const path = [place]
  const reals = [...planned.reals].filter(([key, { weight }]) =>
    holds(node, { place, text: realItem(key, weight) }),
  )
  const shares = sharesOf(
    scheduler,
    reals.map(([, real]) => real),
  )
  if (shares.length === 0) {
    const why = 'the virtual server has no endpoint: refused, and the sender is told'
    const hop = { path, item, rule: `-A ${at} -s ${scheduler}`, why }
    return [withHop(branch, hop, { end: 'rejected' })]
  }
  const persistence =
    persistenceSeconds > 0 ? `; the same for a client during ${persistenceSeconds} s` : ''
  return shares.map(({ real, share }) => {
    const key = hostPort(real.ip, real.port)
    const text = realItem(key, real.weight)
    const rule = `-a ${at} ${text}`
    const why = `the virtual server (scheduler ${scheduler}) takes ${key}, ${oneOf(shares.length)}${persistence}`
    const to = { ...packet, destination: real.ip, port: real.port, isDnated: true }
    const probability = branch.probability * share
    return withHop(
      { ...branch, probability },
      { path, item: { place, text }, rule, why },
      { packet: to },
    )
  })
}

/** The share of new connections of each real server in the long run. Weight 0 gets none. */
function sharesOf(scheduler: string, reals: readonly RealServer[]) {
  const open = reals.filter(({ weight }) => weight > 0)
  // These schedulers fill the server with the highest weight first.
  if (scheduler === 'fo' || scheduler === 'ovf') {
    const [first] = open.toSorted((a, b) => b.weight - a.weight)
    return first ? [{ real: first, share: 1 }] : []
  }
  const weights = unweighted.has(scheduler) ? open.map(() => 1) : open.map(({ weight }) => weight)
  const total = weights.reduce((sum, weight) => sum + weight, 0)
  return open.map((real, index) => ({ real, share: (weights[index] ?? 0) / total }))
}

/** Schedulers that use the weight only to skip servers with weight 0. */
const unweighted: ReadonlySet<string> = new Set(['rr', 'lc', 'dh', 'lblc', 'lblcr'])
