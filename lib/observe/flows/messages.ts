import type { IpFamily } from '../../state/ip.js'
import type { Protocol } from '../../state/names.js'
import type { FlowCounters } from '../../kernel/flow-message.js'
import type { FlowLine } from './line.js'

/** Messages between the proxy and the thread that reads connections. Plain values only. */

/** One service port of both families. */
export interface CountedPort {
  /** `namespace/name:port` */
  readonly service: string
  readonly protocol: Protocol
}

export interface EndpointName extends CountedPort {
  /** `ip:port`; `other` for all endpoints beyond the bound. */
  readonly endpoint: string
}

/** A unique text for a service port, or for one of its endpoints. */
export const keyOf = ({ service, protocol, endpoint }: CountedPort & Partial<EndpointName>) =>
  [service, protocol, endpoint].join(' ')

/** One service port of one family, and where clients reach it. */
export interface ServedPort extends CountedPort {
  /** Unique on the node: family and service port. */
  readonly id: string
  readonly family: IpFamily
  readonly port: number
  readonly addresses: readonly string[]
  /** 0 when it has none. */
  readonly nodePort: number
}

export interface ServedChanges {
  readonly set: readonly ServedPort[]
  /** The ids of removed service ports. */
  readonly removed: readonly string[]
  /** The addresses of this node on which node ports answer, for each family where they are new. */
  readonly localAddresses: readonly (readonly [IpFamily, readonly string[]])[]
}

export interface FlowThreadSettings {
  /**
   * Whether the kernel tells of the connections it tracks, too. If not, it tells only of refused
   * ones, and the mode of those that it carries.
   */
  readonly hearsConnections: boolean
  /** The file that keeps numbers over a restart; empty if none does. */
  readonly stateFile: string
  readonly onlyTranslated: boolean
  /** When counting begins, in ms since 1970; the thread listens a moment later. */
  readonly startedAt: number
  /** The group to which rules log what they refuse; undefined where they do not. */
  readonly refusalGroup: number | undefined
}

export type ToFlowThread =
  | ({ readonly kind: 'services' } & ServedChanges)
  | ({ readonly kind: 'carried' } & Carried)
  | {
      readonly kind: 'numbers'
      readonly id: number
      /** Of the service ports that have changed since the last question. */
      readonly present: readonly PresentEndpoints[]
    }
  /** The process ends soon, and another one may already serve. */
  | { readonly kind: 'leave'; readonly id: number }
  | { readonly kind: 'stop'; readonly id: number }

/** The traffic of one endpoint of a service port since the last report. */
export interface EndpointGrowth extends EndpointName, FlowCounters {
  readonly opened: number
}

/** All endpoints of a service port, of both families. */
export interface PresentEndpoints extends CountedPort {
  /** As `ip:port`. */
  readonly endpoints: readonly string[]
}

interface OpenNow extends CountedPort {
  readonly open: number
}

export interface TurnedAway extends CountedPort {
  readonly refused: number
  readonly dropped: number
}

/** What the mode has counted itself, or another process that carries connections. */
export interface CarriedGrowth {
  readonly counts: readonly EndpointGrowth[]
  readonly turnedAway: readonly TurnedAway[]
}

/** What a mode tells that carries connections itself. */
export interface Carried extends CarriedGrowth {
  /** Endpoints that left long ago, and have no connection any more. */
  readonly left: readonly EndpointName[]
}

export interface FlowNumbers {
  readonly grown: readonly EndpointGrowth[]
  /** Of service ports where their number has changed. */
  readonly open: readonly OpenNow[]
  /** Service ports that are gone and have no open connection any more. */
  readonly gone: readonly CountedPort[]
  /** Endpoints that their service port no longer has, without a connection and without growth. */
  readonly left: readonly EndpointName[]
  /** Connections that rules refused or dropped since the last report. */
  readonly turnedAway: readonly TurnedAway[]
  /** How often the kernel lost events for lack of room. */
  readonly overruns: number
}

export type FromFlowThread =
  | { readonly kind: 'ready'; readonly resumed: boolean; readonly hasRing: boolean }
  | { readonly kind: 'failed'; readonly reason: string }
  | { readonly kind: 'warning'; readonly reason: string }
  | ({ readonly kind: 'numbers'; readonly id: number } & FlowNumbers)
  | { readonly kind: 'lines'; readonly lines: readonly FlowLine[]; readonly leftOut: number }
  | { readonly kind: 'left' | 'stopped'; readonly id: number }
