/**
 * The few fields of API objects that are read, as frozen values with canonical addresses. The
 * parsers of parse-*.ts are the only way to make one: they accept any JSON whatsoever.
 */
import type { IpFamily } from './ip.js'
import type { Protocol } from './names.js'

export interface ServiceObject {
  readonly namespace: string
  readonly name: string
  /** Of both families, at most one each; empty for headless and ExternalName (S02). */
  readonly clusterIps: Readonly<Partial<Record<IpFamily, string>>>
  readonly ports: readonly ServicePortObject[]
  readonly externalIps: readonly string[]
  /** Ingress addresses that may be short-circuited: ipMode VIP only (S10, S11). */
  readonly loadBalancerIps: readonly string[]
  /** Canonical CIDRs, both families; empty means no filter (S12). */
  readonly sourceRanges: readonly string[]
  readonly affinitySeconds: number | undefined
  readonly internalPolicyLocal: boolean
  readonly externalPolicyLocal: boolean
  readonly healthCheckNodePort: number
  /** Annotations `kube-proxy-ts/…` without the prefix. */
  readonly options: Readonly<Record<string, string>>
}

export interface ServicePortObject {
  readonly name: string
  readonly protocol: Protocol
  readonly port: number
  readonly nodePort: number
}

export interface EndpointSliceObject {
  readonly namespace: string
  readonly name: string
  /** Name of the Service it belongs to (E01). */
  readonly service: string
  readonly family: IpFamily
  readonly ports: readonly SlicePortObject[]
  readonly endpoints: readonly SliceEndpointObject[]
  /** When the change that this slice reports happened, in ms since 1970 (E10). */
  readonly triggerTime: number | undefined
}

export interface SlicePortObject {
  readonly name: string
  readonly protocol: Protocol
  readonly port: number
}

export interface SliceEndpointObject {
  readonly ip: string
  readonly ready: boolean
  readonly serving: boolean
  readonly terminating: boolean
  readonly nodeName: string | undefined
  /** undefined: the endpoint carries no such hint. */
  readonly zoneHints: readonly string[] | undefined
  readonly nodeHints: readonly string[] | undefined
  readonly weight: number
}

export interface NodeObject {
  readonly name: string
  /** InternalIPs, then ExternalIPs, at most one a family; the first decides the primary family (L05). */
  readonly ips: readonly string[]
  readonly podCidrs: readonly string[]
  readonly zone: string | undefined
  readonly isBeingDeleted: boolean
  /** Carries the autoscaler's deletion taint (H04). */
  readonly isTaintedForDeletion: boolean
}

export interface ServiceCidrObject {
  readonly name: string
  readonly cidrs: readonly string[]
}

/**
 * What became of a raw object. `ignored` ones are not ours and count as absent; `malformed` ones
 * are reported and leave the last good version in force. `warnings` name parts that were dropped.
 */
export type Parsed<T> =
  | { readonly outcome: 'accepted'; readonly value: T; readonly warnings: readonly string[] }
  | { readonly outcome: 'ignored'; readonly identity: Identity; readonly reason: string }
  | { readonly outcome: 'malformed'; readonly identity: Identity; readonly reason: string }

export interface Identity {
  readonly namespace: string
  /** Empty when the object has not even a name. */
  readonly name: string
}
