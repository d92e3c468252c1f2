import type { PersistentMap } from './persistent-map.js'
import type { Cidr, IpFamily } from './ip.js'
import type { LocalTraffic } from './local-traffic.js'
import type { Protocol, ServicePortName } from './names.js'

/**
 * Everything a mode needs to program one IP family of this node. A value: nothing in it ever
 * changes after it was built, and an unchanged Service keeps the same `DesiredService` reference
 * from one state to the next, so whoever diffs two states compares references.
 * A dual-stack node has two states, one per family; neither mentions the other.
 */
export interface DesiredState {
  readonly family: IpFamily
  /** By `DesiredService.key`. */
  readonly services: PersistentMap<DesiredService>
  readonly node: NodeView
  /** CIDRs from which the cluster allocates ClusterIPs, of this family, as far as the API tells. */
  readonly serviceCidrs: readonly Cidr[]
}

/** One port of one Service in one IP family, with every decision about endpoints already taken. */
export interface DesiredService {
  /** `namespace/name:portname/PROTOCOL`, unique in a state (S01, S25). */
  readonly key: string
  readonly name: ServicePortName
  /** `namespace/name:portname`, what upstream prints in comments and hashes into chain names. */
  readonly portName: string
  readonly protocol: Protocol
  readonly clusterIp: string
  readonly port: number
  /** 0 when the Service has none. */
  readonly nodePort: number
  readonly externalIps: readonly string[]
  readonly loadBalancerIps: readonly string[]
  /** Who may use the load-balancer addresses; empty means everybody (S12, S13). */
  readonly sourceRanges: readonly Cidr[]
  /** ClientIP affinity; undefined means none (S21). */
  readonly affinitySeconds: number | undefined
  readonly internalPolicyLocal: boolean
  readonly externalPolicyLocal: boolean
  /** Reached by node port, load-balancer or external address (S14). */
  readonly externallyAccessible: boolean
  /** 0 unless the Service is of type LoadBalancer with externalTrafficPolicy Local (S20). */
  readonly healthCheckNodePort: number
  /** Annotations `kube-proxy-ts/…` without the prefix; hostile text. */
  readonly options: Readonly<Record<string, string>>

  /** Endpoints for policy Cluster, after readiness and topology hints (E11-E17); sorted. */
  readonly clusterEndpoints: readonly Endpoint[]
  /** Endpoints for policy Local; empty where no policy of the Service asks for them (S15). */
  readonly localEndpoints: readonly Endpoint[]
  /** Union of both without duplicates (E13): what a mode has to know at all. */
  readonly reachableEndpoints: readonly Endpoint[]
  /** Serving endpoints anywhere, whatever policy and hints say: flows to these are kept (E21). */
  readonly servingEndpoints: readonly Endpoint[]
  /** Some endpoint in the cluster is ready, or serving while terminating (E12). */
  readonly hasAnyEndpoints: boolean
  /** Unique ready local addresses, what healthCheckNodePort reports over all ports (E19). */
  readonly readyLocalAddresses: readonly string[]

  /** What happens to a packet for the ClusterIP (S16, S19). */
  readonly internal: Verdict
  /**
   * What happens to a packet from outside for a node port, external or load-balancer address
   * (S17, S19). With externalPolicyLocal, packets from local pods and the node itself use
   * clusterEndpoints all the same (S18).
   */
  readonly external: Verdict
}

/**
 * `cluster` and `local` name the endpoint list to balance over, which then is not empty;
 * `reject` answers at once, because there are no endpoints at all; `drop` stays silent, because
 * there are some, only the policy excludes them here.
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
  /** From the slice's annotation; 1 unless said otherwise. Only schedulers with weights use it. */
  readonly weight: number
}

/** This node, as far as one IP family goes. */
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
  /** Every local address counts; `addresses` then lists those known now. */
  readonly matchesAll: boolean
  /** The chosen CIDRs (`primary` resolved), empty when all match. */
  readonly cidrs: readonly Cidr[]
  /** Local addresses that match, now; sorted. Loopback is in it only where it matches. */
  readonly addresses: readonly string[]
}
