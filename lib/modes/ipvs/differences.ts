import { commentOf, parseRule, type SavedTable } from '../../kernel/iptables.js'
import { chainIn, type Place } from '../../kernel/place.js'
import { hostPort, type Cidr } from '../../state/ip.js'
import {
  ownerText,
  type Difference,
  chainDifferences,
  jumpDifferences,
  rulesIn,
} from '../difference.js'
import { ownerOf, type Changes } from './changes.js'
import { declared, jumpComment, jumps, wishFor } from './chains.js'
import { deviceName, setNameOf, type SetName } from './names.js'
import { compare, type KernelView } from './kernel-view.js'
import type { IpvsPlan } from './plan.js'
import { addressOf, optionsOf } from './render.js'
import {
  addressId,
  resourceId,
  serverId,
  serverText,
  type ServerAddress,
  type VirtualServer,
} from './resource.js'

/** What the kernel holds of one family. */
interface IpvsListing {
  readonly view: KernelView
  readonly tables: readonly SavedTable[]
  readonly excluded: readonly Cidr[]
}

/**
 * Everything that is not as the plan wants. A real server of weight 0 that the plan does not name
 * may be finishing its connections, so it is no difference.
 */
export async function ipvsDifferences(
  plan: IpvsPlan,
  listing: IpvsListing,
): Promise<readonly Difference[]> {
  const { view, tables, excluded } = listing
  const changes = await compare(plan, view, {
    excluded,
    isDraining: (_server, _key, { weight }) => weight === 0,
    effective: (server) => server,
  })
  const resources = await resourceDifferences(plan, changes, view)
  return [...resources, ...ruleDifferences(plan, tables)]
}

async function resourceDifferences(
  plan: IpvsPlan,
  changes: Changes,
  view: KernelView,
): Promise<readonly Difference[]> {
  const whose = (id: string) => ownerText(ownerOf(plan, id))
  const serverOwner = (server: ServerAddress) => whose(serverId(server))
  const differences: Difference[] = []
  const tell = (place: Place, owner: string, expected?: string, found?: string) => {
    differences.push({ place, owner, expected, found })
  }
  const set = (name: SetName) => setPlace(setNameOf(plan.family, name))
  for (const each of changes.addMembers) tell(set(each.set), whose(resourceId(each)), each.member)
  for (const each of changes.removeMembers) tell(set(each.set), '', undefined, each.member)
  for (const server of changes.addServers) {
    const expected = serverItem(server)
    const [place, owner] = [serverPlace(server), serverOwner(server)]
    differences.push({ place, owner, expected, found: undefined, isWhole: true })
  }
  for (const server of changes.setServers) {
    const there = view.servers.get(serverText(server))
    const found = there && serverItem(there)
    tell(serverPlace(server), serverOwner(server), serverItem(server), found)
  }
  for (const { server, key, real } of changes.addReals) {
    tell(serverPlace(server), serverOwner(server), realItem(key, real.weight))
  }
  for (const { server, key, real } of changes.setReals) {
    const there = (await view.reals(server)).get(key)
    const found = realItem(key, there?.weight, there?.altered)
    tell(serverPlace(server), serverOwner(server), realItem(key, real.weight), found)
  }
  for (const { server, real } of changes.removeReals) {
    const found = realItem(hostPort(real.ip, real.port), real.weight, real.altered)
    tell(serverPlace(server), serverOwner(server), undefined, found)
  }
  for (const server of changes.removeServers)
    tell(serverPlace(server), '', undefined, 'the virtual server')
  for (const ip of changes.addAddresses) tell(devicePlace, whose(addressId(ip)), ip)
  for (const ip of changes.removeAddresses) tell(devicePlace, '', undefined, ip)
  return differences
}

export const devicePlace: Place = { kind: 'device', name: deviceName }

export function setPlace(name: string): Place {
  return { kind: 'ipset', name }
}

export function serverPlace(server: ServerAddress): Place {
  return { kind: 'virtual server', name: serverText(server) }
}

/** A virtual server without its real servers, as ipvsadm takes it. */
export function serverItem(server: VirtualServer): string {
  const altered = server.altered === undefined ? '' : ` ${server.altered}`
  return `-A ${addressOf(server)} ${optionsOf(server)}${altered}`
}

/** A real server of a virtual server, as ipvsadm takes it. */
export function realItem(key: string, weight: number | undefined, options = '-m'): string {
  return `-r ${key} ${options} -w ${weight ?? '?'}`
}

function ruleDifferences({ chains }: IpvsPlan, tables: readonly SavedTable[]): Difference[] {
  const own = declared.flatMap(([table, chain]) => {
    const wish = wishFor(chains, table, chain)
    return chainDifferences(chainIn(table, chain), wish, rulesIn(tables, table, chain))
  })
  const ofJumps = jumps.flatMap(({ table, chain, to, rule }) => {
    const present = (rulesIn(tables, table, chain) ?? []).filter((text) => {
      const spec = parseRule(text)
      return spec.jump === to && commentOf(spec) === jumpComment
    })
    return jumpDifferences(chainIn(table, chain), rule.text, present)
  })
  return [...own, ...ofJumps]
}
