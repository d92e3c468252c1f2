import type { RealServer, ServerAddress, VirtualServer } from '../../kernel/ipvs.js'
import type { IpvsPlan } from './plan.js'
import {
  addressId,
  isSameReal,
  isSameServer,
  resourceId,
  serverId,
  type PlannedMember,
  type PlannedServer,
  type Resource,
} from './resource.js'
import { jumps, type ChainRule } from './chains.js'

export interface RealChange {
  readonly server: ServerAddress
  /** `Endpoint.key` */
  readonly key: string
  readonly real: RealServer
}

/** A removed real server. Whether it may drain depends on the scheduler of its virtual server. */
export interface RemovedReal extends RealChange {
  readonly server: VirtualServer
}

/** What has to be done to the kernel, in the order of its fields. */
export interface Changes {
  readonly addMembers: PlannedMember[]
  readonly removeMembers: PlannedMember[]
  /** Present when the rules have to be written. */
  chains: readonly ChainRule[] | undefined
  readonly addServers: VirtualServer[]
  readonly setServers: VirtualServer[]
  readonly addReals: RealChange[]
  readonly setReals: RealChange[]
  readonly addAddresses: string[]
  /** Removed real servers of virtual servers that stay. They may have connections to finish. */
  readonly removeReals: RemovedReal[]
  readonly removeServers: ServerAddress[]
  readonly removeAddresses: string[]
}

export function noChanges(): Changes {
  return {
    addMembers: [],
    removeMembers: [],
    chains: undefined,
    addServers: [],
    setServers: [],
    addReals: [],
    setReals: [],
    addAddresses: [],
    removeReals: [],
    removeServers: [],
    removeAddresses: [],
  }
}

export function countChanges({ chains, ...lists }: Changes): number {
  const rules = chains ? chains.length + jumps.length : 0
  return Object.values(lists).reduce((sum, list) => sum + list.length, rules)
}

/** The changes from one plan to the next. The work is proportional to what changed. */
export function between(plan: IpvsPlan, previous: IpvsPlan): Changes {
  const changes = noChanges()
  if (plan.chains !== previous.chains) changes.chains = plan.chains
  const { added, changed, removed } = plan.requests.since(previous.requests)
  for (const [, [now]] of added) addResource(changes, now?.resource)
  for (const [, [now], [before]] of changed) {
    changeResource(changes, now?.resource, before?.resource)
  }
  for (const [, [before]] of removed) removeResource(changes, before?.resource)
  return changes
}

/** The ids of all resources that changes concern; a real server has the id of its virtual server. */
export function changedIds(changes: Changes): string[] {
  const { addReals, setReals, removeReals } = changes
  return [
    ...[...changes.addMembers, ...changes.removeMembers].map(resourceId),
    ...[...changes.addServers, ...changes.setServers, ...changes.removeServers].map(serverId),
    ...[...addReals, ...setReals, ...removeReals].map(({ server }) => serverId(server)),
    ...[...changes.addAddresses, ...changes.removeAddresses].map(addressId),
  ]
}

export function addResource(changes: Changes, resource: Resource | undefined): void {
  if (!resource) return
  switch (resource.kind) {
    case 'server':
      changes.addServers.push(resource.server)
      for (const [key, real] of resource.reals) {
        changes.addReals.push({ server: resource.server, key, real })
      }
      return
    case 'address':
      changes.addAddresses.push(resource.ip)
      return
    case 'member':
      changes.addMembers.push(resource)
  }
}

function changeResource(
  changes: Changes,
  resource: Resource | undefined,
  previous: Resource | undefined,
): void {
  // An address or a member has nothing but its id, so with the same id nothing can differ.
  if (resource?.kind !== 'server' || previous?.kind !== 'server') return
  if (!isSameServer(resource.server, previous.server)) changes.setServers.push(resource.server)
  changeReals(changes, resource, previous.reals)
}

export function changeReals(
  changes: Changes,
  { server, reals }: PlannedServer,
  previous: ReadonlyMap<string, RealServer>,
): void {
  for (const [key, real] of reals) {
    const before = previous.get(key)
    if (!before) changes.addReals.push({ server, key, real })
    else if (!isSameReal(real, before)) changes.setReals.push({ server, key, real })
  }
  for (const [key, real] of previous) {
    if (!reals.has(key)) changes.removeReals.push({ server, key, real })
  }
}

function removeResource(changes: Changes, resource: Resource | undefined): void {
  if (!resource) return
  switch (resource.kind) {
    case 'server':
      changes.removeServers.push(resource.server)
      return
    case 'address':
      changes.removeAddresses.push(resource.ip)
      return
    case 'member':
      changes.removeMembers.push(resource)
  }
}

/** The owner of a resource; empty if no Service asks for it. */
export function ownerOf({ requests }: IpvsPlan, id: string): string {
  return requests.get(id)?.[0]?.owner ?? ''
}
