/**
 * The few fields of API objects that the proxy reads, with canonical addresses. Only the parsers in
 * parse-*.ts make these objects. The parsers accept any JSON.
 */
import type { Options } from './annotations.js'
import type { IpFamily } from './ip.js'
import type { Protocol } from './names.js'

export interface ServiceObject {
  readonly namespace: string
  readonly name: string
  /** At most one of each family; empty for headless and ExternalName Services (S02). */
  readonly clusterIps: Readonly<Partial<Record<IpFamily, string>>>
  readonly ports: readonly ServicePortObject[]
  readonly externalIps: readonly string[]
  /** Ingress addresses that this node serves itself: only those with ipMode VIP (S10, S11). */
  readonly loadBalancerIps: readonly string[]
  /** Canonical CIDRs of both families; empty means no filter (S12). */
  readonly sourceRanges: readonly string[]
  readonly affinitySeconds: number | undefined
  readonly internalPolicyLocal: boolean
  readonly externalPolicyLocal: boolean
  readonly healthCheckNodePort: number
  readonly options: Options
}

export interface ServicePortObject extends SlicePortObject {
  readonly nodePort: number
}

export interface EndpointSliceObject {
  readonly namespace: string
  readonly name: string
  /** Name of its Service (E01). */
  readonly service: string
  readonly family: IpFamily
  readonly ports: readonly SlicePortObject[]
  readonly endpoints: readonly SliceEndpointObject[]
  /** When the latest change in this slice happened, in ms since 1970 (E10). */
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
  /** undefined: the endpoint has no such hint. */
  readonly zoneHints: readonly string[] | undefined
  readonly nodeHints: readonly string[] | undefined
  /** From the annotation of the slice. */
  readonly weight: number
  /** The annotation with weights may name the pod. */
  readonly podName?: string
}

export interface NodeObject {
  readonly name: string
  /** InternalIPs before ExternalIPs, at most one of each family (L05). */
  readonly ips: readonly string[]
  readonly podCidrs: readonly string[]
  readonly zone: string | undefined
  readonly isBeingDeleted: boolean
  /** The autoscaler is about to delete it: it has the deletion taint (H04). */
  readonly isTaintedForDeletion: boolean
}

export interface ServiceCidrObject {
  readonly name: string
  readonly cidrs: readonly string[]
}

/**
 * The result of parsing a raw object. An `ignored` object belongs to another proxy or to none and
 * counts as absent. A `malformed` object is reported, and its last good version stays in use.
 * `warnings` name the parts that are left out.
 */
export type Parsed<T> =
  | { readonly outcome: 'accepted'; readonly value: T; readonly warnings: readonly string[] }
  | {
      readonly outcome: 'ignored'
      readonly identity: Identity
      readonly reason: string
      readonly warnings?: readonly string[]
    }
  | { readonly outcome: 'malformed'; readonly identity: Identity; readonly reason: string }

export interface Identity {
  readonly namespace: string
  /** Empty when the object has no name. */
  readonly name: string
}
