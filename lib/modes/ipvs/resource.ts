import type { RealServer, ServerAddress, VirtualServer } from '../../kernel/ipvs.js'
import type { Requested } from '../requests.js'
import type { SetName } from './names.js'

export { serverText } from '../../kernel/ipvs/messages.js'
export type { RealServer, ServerAddress, VirtualServer }

/** A virtual server with its real servers. */
export interface PlannedServer {
  readonly kind: 'server'
  readonly server: VirtualServer
  /** By `Endpoint.key`. */
  readonly reals: ReadonlyMap<string, RealServer>
}

/** A Service address on the dummy device. */
interface PlannedAddress {
  readonly kind: 'address'
  readonly ip: string
}

export interface PlannedMember {
  readonly kind: 'member'
  readonly set: SetName
  readonly member: string
}

/** Something in the kernel that one or more service ports ask for. */
export type Resource = PlannedServer | PlannedAddress | PlannedMember

/** What one service port asks for. */
export interface ServicePart {
  readonly owner: string
  readonly resources: ReadonlyMap<string, Resource>
}

export interface ResourceRequest extends Requested {
  readonly resource: Resource
}

export function serverId({ ip, port, protocol }: Omit<ServerAddress, 'family'>): string {
  return `server ${ip} ${port} ${protocol}`
}

export function addressId(ip: string): string {
  return `address ${ip}`
}

/** Two resources have the same id if the kernel can hold only one of them. */
export function resourceId(resource: Resource): string {
  switch (resource.kind) {
    case 'server':
      return serverId(resource.server)
    case 'address':
      return addressId(resource.ip)
    case 'member':
      return `member ${resource.set} ${resource.member}`
  }
}

/** Whether the kernel would hold the same for two resources with the same id. */
export function isSameResource(a: Resource, b: Resource): boolean {
  if (a === b) return true
  if (a.kind !== 'server' || b.kind !== 'server') return a.kind === b.kind
  if (!isSameServer(a.server, b.server) || a.reals.size !== b.reals.size) return false
  for (const [key, real] of a.reals) if (!isSameReal(real, b.reals.get(key))) return false
  return true
}

export function isSameReal(a: RealServer, b: RealServer | undefined): boolean {
  return a.weight === b?.weight && a.altered === b.altered
}

export function isSameServer(a: VirtualServer, b: VirtualServer): boolean {
  return (
    a.scheduler === b.scheduler &&
    a.schedulerFlags === b.schedulerFlags &&
    a.persistenceSeconds === b.persistenceSeconds &&
    a.altered === b.altered
  )
}
