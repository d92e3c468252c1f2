import type { ModeName } from '../../lib/config/config.js'
import type { DetectLocal } from '../../lib/state/node-view.js'
import type { IpFamily } from '../../lib/state/ip.js'
import type { Place } from '../../lib/lab/world/topology.js'

/** One scenario: objects in steps, and flows after each step. See test/cases/README.md. */
export interface Case {
  /** The name of its file without the ending. */
  readonly topic: string
  /** A sentence that cites the IDs of behaviour.md. */
  readonly name: string
  readonly families: readonly IpFamily[]
  readonly settings: CaseSettings
  readonly steps: readonly Step[]
}

/** How the proxy under test is configured; cases with equal settings share one proxy process. */
export interface CaseSettings {
  readonly masqueradeAll: boolean
  readonly nodePortAddresses: readonly string[]
  readonly localhostNodePorts: boolean
  /** The feature gate AllowServiceExternalIPs. */
  readonly allowsExternalIps: boolean
  readonly detectLocal: DetectLocal
}

/** What these settings are in the configuration of a mode. */
export function configValues({ masqueradeAll, localhostNodePorts }: CaseSettings) {
  return {
    'iptables.masqueradeAll': masqueradeAll,
    'nftables.masqueradeAll': masqueradeAll,
    'iptables.localhostNodePorts': localhostNodePorts,
    featureGates: { KubeProxyNFTablesLocalhostNodePorts: localhostNodePorts },
  }
}

export interface Step {
  /** What this step is about, for reports. */
  readonly title: string
  /** Shorthand by Service name, merged over that of earlier steps; null removes the Service. */
  readonly services: Readonly<Record<string, ServiceShorthand | null>>
  /** The zone label of the node; null removes it, undefined leaves it. */
  readonly zone: string | null | undefined
  /** Ends the proxy and starts it anew before the objects of the step. */
  readonly restart: boolean
  /** Another program deletes the proxy's rules before the objects of the step. */
  readonly flush: boolean
  /** The ServiceCIDRs from now on; undefined leaves them. */
  readonly serviceCidrs: readonly ServiceRange[] | undefined
  /** The time in which flows must become right; 0: they are right as soon as the proxy is done. */
  readonly withinMs: number
  /** Flows that are made all the time, from before the changes of this step until after them. */
  readonly meanwhile: readonly Flow[]
  /** Lets time pass after the objects and before the flows. */
  readonly waitMs: number
  readonly flows: readonly Flow[]
}

/** The ranges that ClusterIPs come from. */
export const serviceRanges = ['first', 'second'] as const

export type ServiceRange = (typeof serviceRanges)[number]

/** A Service as a case describes it; objects.ts makes API objects of it. */
export interface ServiceShorthand {
  readonly type?: string
  /** `name: port -> target/PROTOCOL`; name, target and protocol may be left out. */
  readonly ports?: readonly string[]
  readonly families?: readonly IpFamily[]
  readonly range?: ServiceRange
  readonly nodePort?: boolean
  readonly loadBalancer?:
    | boolean
    | { readonly ipMode?: string; readonly hostname?: string; readonly onLan?: boolean }
  /** `both`: addresses of both families, also for a Service of one. */
  readonly externalIPs?: boolean | 'both'
  readonly affinity?: number | null
  readonly internalTrafficPolicy?: string
  readonly externalTrafficPolicy?: string
  /** Places, or CIDRs as they are. */
  readonly sourceRanges?: readonly string[]
  /** `pod-1 terminating for-zone=a port=9090`: a place and its properties. */
  readonly endpoints?: readonly string[]
  /** Parts of EndpointSlices, merged over the generated ones; places stand for their addresses. */
  readonly slices?: readonly Readonly<Record<string, unknown>>[]
  readonly labels?: Readonly<Record<string, string>>
  readonly annotations?: Readonly<Record<string, string>>
  readonly sliceLabels?: Readonly<Record<string, string>>
  /** Merged over the generated Service's spec. */
  readonly spec?: Readonly<Record<string, unknown>>
}

export const targets = [
  'cluster',
  'node',
  'node-second',
  'node-bridge',
  'localhost',
  'load-balancer',
  'external',
  'endpoint',
  'unused-cluster-ip',
] as const

/** The address of a Service that a flow goes to; `endpoint` is a pod's own, without any proxy. */
export type Target = (typeof targets)[number]

/** Where a flow starts: a place and one of its addresses. */
export interface Client {
  readonly place: Place
  readonly addressIndex: number
}

/**
 * Who answers: all of these backends and no others. Or how it fails.
 * `answered`: any backend answers, for example an echo, which does not name its sender.
 * `no-reply`: any failure. `same`: the backend that the kept connection reached before.
 * `whatever`: nothing is expected.
 */
export type Gets =
  | readonly Place[]
  | 'refused'
  | 'dropped'
  | 'closed'
  | 'unreachable'
  | 'no-reply'
  | 'answered'
  | 'same'
  | 'whatever'

/**
 * Whether the backend sees the client's address or one of the node's. `announced`: a header names
 * the client and the address that it asked.
 */
export type Source = 'kept' | 'masqueraded' | 'announced'

export interface Flow {
  readonly from: readonly Client[]
  readonly to: readonly Target[]
  readonly service: string
  /** The name of the Service's port; undefined: the first one. */
  readonly port: string | undefined
  /** A port number instead of the target's own. */
  readonly portNumber: number | undefined
  readonly families: readonly IpFamily[]
  readonly gets: Gets
  readonly source: Source | undefined
  /** Every backend gets its share, within five standard deviations. */
  readonly evenly: boolean
  /**
   * All connections reach one backend. `same`: the one of an earlier step. `some-moved`: at least
   * one of all clients of this flow reaches another backend than before.
   */
  readonly sticky: boolean | 'same' | 'some-moved'
  /** Names the connection and keeps it open. */
  readonly keep: string | undefined
  /** Sends on a kept connection instead of making one. */
  readonly use: string | undefined
  /** Before that, the backend answers a segment with one that is outside of the window. */
  readonly stray: boolean
  /** An ICMP echo instead of a connection. */
  readonly ping: boolean
  readonly count: number | undefined
  readonly payloadBytes: number | undefined
  readonly halfClose: boolean
  /** Other expectations in some modes. */
  readonly differs: Readonly<Partial<Record<ModeName, Difference>>>
}

/** Another expectation in one mode, and the reason for it. */
export interface Difference {
  readonly because: string
  readonly gets?: Gets
  /** null: nothing is expected of the source. */
  readonly source?: Source | null
  readonly sticky?: boolean
}
