import { compareChain, type SavedTable } from '../../kernel/iptables.js'
import { hostPort, type Cidr } from '../../state/ip.js'
import { ownerText, wholeChain, type Difference } from '../difference.js'
import type { Changes } from './changes.js'
import { jumpComment } from './chains.js'
import { deviceName, setNameOf } from './names.js'
import { compare, type KernelView } from './kernel-view.js'
import type { IpvsPlan } from './plan.js'
import { addressOf, optionsOf } from './render.js'
import { resourceId, serverText, type Resource, type ServerAddress } from './resource.js'

/** What the kernel holds of one family. */
export interface IpvsListing {
  readonly view: KernelView
  readonly tables: readonly SavedTable[]
  readonly excluded: readonly Cidr[]
}

/**
 * Everything that is not as the plan wants. A real server of weight 0 that the plan does not name
 * may be finishing its connections, so it is no difference.
 */
export function ipvsDifferences(plan: IpvsPlan, listing: IpvsListing): readonly Difference[] {
  const { view, tables, excluded } = listing
  const changes = compare(plan, view, {
    excluded,
    isDraining: (server, key) => view.servers.get(serverText(server))?.reals.get(key)?.weight === 0,
    effective: (server) => server,
  })
  return [...resourceDifferences(plan, changes, view), ...ruleDifferences(plan, tables)]
}

function resourceDifferences(
  plan: IpvsPlan,
  changes: Changes,
  view: KernelView,
): readonly Difference[] {
  const ownerOf = (resource: Resource) =>
    ownerText(plan.requests.get(resourceId(resource))?.[0]?.owner ?? '')
  const serverOwner = (server: ServerAddress) =>
    ownerOf({ kind: 'server', server: { ...blank, ...server }, reals: new Map() })
  const at = (server: ServerAddress) => `virtual server ${serverText(server)}`
  const known = (server: ServerAddress) => view.servers.get(serverText(server))
  const differences: Difference[] = []
  const tell = (where: string, owner: string, expected?: string, found?: string) => {
    differences.push({ where, owner, expected, found })
  }
  const set = (name: Parameters<typeof setNameOf>[1]) => `ipset ${setNameOf(plan.family, name)}`
  for (const each of changes.addMembers) tell(set(each.set), ownerOf(each), each.member)
  for (const each of changes.removeMembers) tell(set(each.set), '', undefined, each.member)
  for (const server of changes.addServers) {
    tell(at(server), serverOwner(server), `-A ${addressOf(server)} ${optionsOf(server)}`)
  }
  for (const server of changes.setServers) {
    const there = known(server)?.server
    const found = there && `-A ${addressOf(there)} ${optionsOf(there)}`
    tell(at(server), serverOwner(server), `-A ${addressOf(server)} ${optionsOf(server)}`, found)
  }
  for (const { server, key, real } of changes.addReals) {
    tell(at(server), serverOwner(server), `-r ${key} -m -w ${real.weight}`)
  }
  for (const { server, key, real } of changes.setReals) {
    const there = known(server)?.reals.get(key)?.weight
    const found = `-r ${key} -m -w ${there ?? '?'}`
    tell(at(server), serverOwner(server), `-r ${key} -m -w ${real.weight}`, found)
  }
  for (const { server, real } of changes.removeReals) {
    const found = `-r ${hostPort(real.ip, real.port)} -m -w ${real.weight}`
    tell(at(server), serverOwner(server), undefined, found)
  }
  for (const server of changes.removeServers) tell(at(server), '', undefined, 'the virtual server')
  const device = `device ${deviceName}`
  for (const ip of changes.addAddresses) tell(device, ownerOf({ kind: 'address', ip }), ip)
  for (const ip of changes.removeAddresses) tell(device, '', undefined, ip)
  return differences
}

const blank = { scheduler: '', schedulerFlags: 0, persistenceSeconds: 0 } as const

function ruleDifferences({ chains }: IpvsPlan, tables: readonly SavedTable[]): Difference[] {
  const saved = (table: string, chain: string) =>
    tables.find((one) => one.table === table)?.chains.get(chain)?.rules
  const of = ({ rule }: { readonly rule: { readonly text: string } }) => ({
    text: rule.text,
    owner: '',
  })
  const own = chains.declared.flatMap(([table, chain]): Difference[] => {
    const where = `${table} ${chain}`
    const present = saved(table, chain)
    const rules = chains.rules.filter((one) => one.table === table && one.chain === chain).map(of)
    const missing = { where, expected: wholeChain, found: undefined, owner: '' }
    return [
      ...(present ? [] : [missing]),
      ...compareChain({ rules, isOrdered: true }, present).map((each) => ({ where, ...each })),
    ]
  })
  const jumps = chains.jumps.flatMap(({ table, chain, rule }) => {
    const target = rule.args.at(-1) ?? ''
    const present = (saved(table, chain) ?? []).filter(
      (text) => text.includes(jumpComment) && text.endsWith(` ${target}`),
    )
    return compareChain({ rules: [of({ rule })], isOrdered: false }, present).map((each) => ({
      where: `${table} ${chain}`,
      ...each,
    }))
  })
  return [...own, ...jumps]
}
