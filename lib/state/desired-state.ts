import type { Options } from './annotations.js'
import type { BalanceChoice } from './balance.js'
import type { PersistentMap } from './persistent-map.js'
import type { Cidr, IpFamily } from './ip.js'
import type { EndpointCheck } from './endpoint-check.js'
import type { Protocol, ServicePortName } from './names.js'

/**
 * Everything that a mode needs to program one IP family of this node. It is a value: nothing in it
 * changes after it is built. An unchanged Service keeps the same `DesiredService` reference from one
 * state to the next, so two states are compared by reference.
 * A dual-stack node has two states, one per family. They are independent of each other.
 */
export interface DesiredState {
  readonly family: IpFamily
  /** By `DesiredService.key`. */
  readonly services: PersistentMap<DesiredService>
  readonly node: NodeView
  /** CIDRs of this family from which the cluster allocates ClusterIPs, as far as they are known. */
  readonly serviceCidrs: readonly Cidr[]
}

/** One port of one Service in one IP family, with every decision about its endpoints. */
export interface DesiredService {
  /** `namespace/name:portname/PROTOCOL`, unique in a state (S01, S25). */
  readonly key: string
  readonly name: ServicePortName
  /** `namespace/name:portname`: upstream prints it in comments and hashes it into chain names. */
  readonly portName: string
  readonly protocol: Protocol
  readonly clusterIp: string
  readonly port: number
  /** 0 when the Service has none. */
  readonly nodePort: number
  readonly externalIps: readonly string[]
  readonly loadBalancerIps: readonly string[]
  /** Addresses left out of both lists: each is the ClusterIP of another Service with this port. */
  readonly withheldIps: readonly WithheldIp[]
  /** Endpoints left out of all lists, because the mode cannot send a connection to them. */
  readonly unusableEndpoints: readonly UnusableEndpoint[]
  /** Clients that may use the load-balancer addresses; empty means all (S12, S13). */
  readonly sourceRanges: readonly Cidr[]
  /** Seconds of ClientIP affinity; undefined means none (S21). */
  readonly affinitySeconds: number | undefined
  readonly internalPolicyLocal: boolean
  readonly externalPolicyLocal: boolean
  /** The service port has a node port, load-balancer address or external address (S14). */
  readonly externallyAccessible: boolean
  /** 0 unless the Service is of type LoadBalancer with externalTrafficPolicy Local (S20). */
  readonly healthCheckNodePort: number
  readonly options: Options
  /** How the endpoint of the next connection is chosen; undefined: the mode decides. */
  readonly balance: BalanceChoice | undefined
  /** Annotations that the mode of this node cannot do, a sentence each; undefined: none. */
  readonly unsupported?: readonly string[]

  /** Endpoints for policy Cluster, after readiness and topology hints (E11-E17); sorted. */
  readonly clusterEndpoints: readonly Endpoint[]
  /** Endpoints for policy Local; empty when the Service has no such policy (S15). */
  readonly localEndpoints: readonly Endpoint[]
  /** Both lists without duplicates (E13): all endpoints that a mode has to know. */
  readonly reachableEndpoints: readonly Endpoint[]
  /** Serving endpoints on all nodes, whatever policy and hints say. Their flows are kept (E21). */
  readonly servingEndpoints: readonly Endpoint[]
  /** At least one endpoint in the cluster is ready, or serving while terminating (E12). */
  readonly hasAnyEndpoints: boolean
  /** What is checked and what fails; undefined when the Service asks for no checks. */
  readonly health?: ServiceHealth
  /** Unique ready local addresses; healthCheckNodePort counts them over all ports (E19). */
  readonly readyLocalAddresses: readonly string[]

  /** What happens to a packet for the ClusterIP (S16, S19). */
  readonly internal: Verdict
  /**
   * What happens to a packet from outside for a node port, external or load-balancer address
   * (S17, S19). Even with externalPolicyLocal, packets from local pods and from the node itself
   * use clusterEndpoints (S18).
   */
  readonly external: Verdict
}

/** The checks of one service port, and what they found. */
interface ServiceHealth {
  readonly check: EndpointCheck
  /** The endpoints to check: those that this node uses, or would use if they did not fail. */
  readonly endpoints: readonly Endpoint[]
  /** Sorted by key. They are used in spite of it if all fail and the check keeps the last ones. */
  readonly failing: readonly FailingEndpoint[]
}

interface FailingEndpoint {
  /** `Endpoint.key` */
  readonly key: string
  readonly reason: string
}

export interface UnusableEndpoint {
  /** `Endpoint.key` */
  readonly key: string
  /** `namespace/name` of the Service that has this address and port as its ClusterIP and port. */
  readonly owner: string
}

export interface WithheldIp {
  readonly ip: string
  /** `namespace/name` of the Service that has this ClusterIP. */
  readonly owner: string
}

/**
 * `cluster` and `local` name the list of endpoints to balance over, which is not empty then.
 * `reject` answers with an error, because the Service has no endpoints. `drop` does not answer,
 * because the Service has endpoints, but the policy excludes them on this node.
 */
export type Verdict = 'cluster' | 'local' | 'reject' | 'drop'

export interface Endpoint {
  readonly ip: string
  readonly port: number
  /** `ip:port`, or `[ip]:port`; unique within a service port. */
  readonly key: string
  /** On this node (E06). */
  readonly isLocal: boolean
  readonly ready: boolean
  readonly serving: boolean
  readonly terminating: boolean
  /** From an annotation of the Service or the slice; 1 by default. Not every balance uses it. */
  readonly weight: number
}

/** This node in one IP family. */
export interface NodeView {
  readonly name: string
  /** The node's main address of this family; undefined when it has none. */
  readonly primaryIp: string | undefined
  /** Every address of this family on this node's interfaces, loopback included; sorted. */
  readonly localAddresses: readonly string[]
  readonly nodePorts: NodePortAddresses
  readonly localTraffic: LocalTraffic
}

/** On which addresses node ports answer (S23, L06, L07). */
export interface NodePortAddresses {
  /** Every local address answers; `addresses` lists those that exist now. */
  readonly matchesAll: boolean
  /** The configured CIDRs, with words such as `primary` resolved; empty when all addresses match. */
  readonly cidrs: readonly Cidr[]
  /** Local addresses that match now, sorted. Loopback is among them only if it matches. */
  readonly addresses: readonly string[]
  /** A range of loopback addresses is asked for by itself: `all` and 0.0.0.0/0 do not ask for it. */
  readonly asksForLoopback: boolean
}

/** How packets from pods of this node are recognized (R07); `none`: they are not (R08). */
export type LocalTraffic =
  | { readonly by: 'none' }
  | { readonly by: 'cidrs'; readonly cidrs: readonly Cidr[] }
  | { readonly by: 'interface'; readonly name: string }
  | { readonly by: 'interface-prefix'; readonly prefix: string }
