import { Slice } from '../../async.js'
import { isAutomatic } from '../../kernel/device-addresses.js'
import type { IpSets, SavedIpSet } from '../../kernel/ipset.js'
import type {
  Ipvs,
  ListedRealServer,
  RealServer,
  ServerAddress,
  VirtualServer,
} from '../../kernel/ipvs.js'
import type { Links } from '../../kernel/links.js'
import { cidrContains, hostPort, parseIp, type Cidr, type IpFamily } from '../../state/ip.js'
import { addResource, changeReals, noChanges, type Changes } from './changes.js'
import {
  deviceName,
  frontendSets,
  nodePortSets,
  setNameOf,
  setNames,
  type SetName,
  weightless,
} from './names.js'
import type { IpvsPlan } from './plan.js'
import { isSameServer, serverText, type PlannedServer } from './resource.js'
import { fittingSet } from './set-batch.js'

/** What the kernel holds of one family. */
export interface KernelView {
  /** By {@link serverText}. */
  readonly servers: ReadonlyMap<string, VirtualServer>
  /**
   * The real servers of one virtual server, by `Endpoint.key`. They are read when asked for: kept
   * together, those of a large cluster would outlive the nursery of V8.
   */
  readonly reals: (server: ServerAddress) => Promise<ReadonlyMap<string, RealServer>>
  /** On the dummy device, with the prefix if somebody added them with one. */
  readonly addresses: ReadonlyMap<string, string>
  /** By kernel name. */
  readonly sets: ReadonlyMap<string, SavedIpSet>
}

interface ViewSources {
  readonly ipvs: Pick<Ipvs, 'listServers' | 'listRealServers'>
  readonly links: Pick<Links, 'find' | 'addresses'>
  readonly sets: Pick<IpSets, 'list'>
}

/** Reads everything but the real servers. */
export async function readKernel(family: IpFamily, sources: ViewSources): Promise<KernelView> {
  const { ipvs, links, sets } = sources
  const device = links.find(deviceName)
  const on =
    device === undefined ? [] : await links.addresses(family, { on: device, prefixes: true })
  const listed = await ipvs.listServers(family)
  return {
    servers: new Map(listed.map((server) => [serverText(server), server])),
    reals: (server) => realsOf(ipvs, server),
    addresses: new Map(on.map((text) => [text.split('/')[0] ?? text, text])),
    sets: await sets.list(),
  }
}

/** The real servers of a virtual server, by `Endpoint.key`. */
export async function realsOf(
  ipvs: Pick<Ipvs, 'listRealServers'>,
  server: ServerAddress,
): Promise<ReadonlyMap<string, ListedRealServer>> {
  const reals = await ipvs.listRealServers(server)
  return new Map(reals.map((real) => [hostPort(real.ip, real.port), real]))
}

export interface CompareOptions {
  /** Virtual servers in these ranges are never deleted (IP29). */
  readonly excluded: readonly Cidr[]
  /** Whether this real server finishes its connections. Then it is no difference. */
  readonly isDraining: (server: ServerAddress, key: string, real: RealServer) => boolean
  /** The server as the kernel should hold it: another scheduler replaces a missing one. */
  readonly effective: (server: VirtualServer) => VirtualServer
}

/** The changes that make the kernel match the plan, without those of rules. Other work runs meanwhile. */
export async function compare(
  plan: IpvsPlan,
  view: KernelView,
  options: CompareOptions,
): Promise<Changes> {
  const changes = noChanges()
  const wanted = new Set<string>()
  const slice = new Slice()
  for (const [first] of plan.requests.values()) {
    if (slice.isOver) await slice.rest()
    const resource = first?.resource
    if (resource?.kind === 'server') {
      const id = serverText(resource.server)
      wanted.add(id)
      const present = view.servers.get(id)
      if (!present) addResource(changes, resource)
      else compareServer(changes, resource, present, await view.reals(present), options)
    } else if (resource?.kind === 'address') {
      wanted.add(resource.ip)
      if (!view.addresses.has(resource.ip)) addResource(changes, resource)
    } else if (resource) {
      const name = setNameOf(plan.family, resource.set)
      wanted.add(`${name} ${resource.member}`)
      const present = fittingSet(plan.family, view.sets, resource.set)?.members
      if (present?.has(resource.member) !== true) addResource(changes, resource)
    }
  }
  for (const [ip, text] of view.addresses) {
    if (!wanted.has(ip) && !isAutomatic(ip)) changes.removeAddresses.push(text)
  }
  for (const [id, server] of view.servers) {
    if (slice.isOver) await slice.rest()
    if (!wanted.has(id) && isOurs(view, server, options.excluded)) {
      changes.removeServers.push(server)
    }
  }
  for (const set of setNames) {
    const name = setNameOf(plan.family, set)
    for (const member of fittingSet(plan.family, view.sets, set)?.members ?? []) {
      if (slice.isOver) await slice.rest()
      if (!wanted.has(`${name} ${member}`)) {
        changes.removeMembers.push({ kind: 'member', set, member })
      }
    }
  }
  return changes
}

function compareServer(
  changes: Changes,
  wanted: PlannedServer,
  present: VirtualServer,
  reals: ReadonlyMap<string, RealServer>,
  { effective, isDraining }: CompareOptions,
): void {
  const { server } = wanted
  if (!isSameServer(effective(server), present)) changes.setServers.push(server)
  const mayDrain = effective(server).scheduler !== weightless
  const serving = new Map(reals)
  for (const [key, real] of reals) {
    if (mayDrain && !wanted.reals.has(key) && isDraining(server, key, real)) serving.delete(key)
  }
  changeReals(changes, wanted, serving)
}

/**
 * Whether a virtual server is from a kube-proxy, this one or an earlier one: its address is on the
 * dummy device, or one of the ipsets names it. Device and ipsets survive a restart, like the
 * virtual server itself. All others belong to other programs and stay, unlike upstream (IP30).
 */
export function isOurs(
  { addresses, sets }: KernelView,
  server: ServerAddress,
  excluded: readonly Cidr[],
): boolean {
  const { ip, port, protocol, family } = server
  const address = parseIp(ip)
  if (!address || excluded.some((cidr) => cidrContains(cidr, address))) return false
  if (addresses.has(ip)) return true
  const members = (name: SetName) => sets.get(setNameOf(family, name))?.members
  const member = `${ip},${protocol.toLowerCase()}:${port}`
  if (frontendSets.some((name) => members(name)?.has(member))) return true
  if (protocol === 'SCTP') return false
  return nodePortSets[protocol].some((name) => members(name)?.has(String(port)))
}
