import type { Protocol } from '../../state/names.js'

/** The result of a connection; docs/flows.md describes the fields, which are stable. */
export const verdicts = ['forwarded', 'refused', 'dropped', 'no-endpoints'] as const
export type FlowVerdict = (typeof verdicts)[number]

/** One line of the stream of connections. */
export interface FlowLine {
  /** The time, in ms since 1970. */
  readonly at: number
  /** A connection has one line when it is opened and one at its end, or only the second. */
  readonly event: 'opened' | 'ended'
  readonly verdict: FlowVerdict
  /** The reason in words; empty where the verdict says enough. */
  readonly why: string
  readonly protocol: Protocol
  /** `ip:port`, as this node saw it. */
  readonly client: string
  /** `namespace/name:port` */
  readonly service: string
  /** The address of the Service that the client asked; empty where it is not known. */
  readonly address: string
  /** `ip:port`; empty where there is none. */
  readonly endpoint: string
  /** Only at the end of a connection, and only if it is known. */
  readonly durationMs?: number
  readonly bytesToEndpoint?: number
  readonly bytesToClient?: number
}
