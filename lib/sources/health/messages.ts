import type { EndpointCheck } from '../../state/endpoint-check.js'

/** Messages between the thread that syncs and the thread that checks. Plain values only. */

/** An endpoint of one service port to check. */
export interface CheckTarget {
  /** A unique text, made of service port and endpoint. */
  readonly id: string
  /** The namespace of the Service. */
  readonly namespace: string
  readonly ip: string
  readonly port: number
  readonly check: EndpointCheck
  /** Why the endpoint fails; undefined if it works. A new thread goes on from there. */
  readonly reason: string | undefined
}

export interface TargetChanges {
  readonly set: readonly CheckTarget[]
  /** The ids of targets to forget. */
  readonly remove: readonly string[]
}

/** An endpoint that works again, begins to fail, or fails for another reason. */
export interface Turn {
  readonly id: string
  /** Why the endpoint fails; undefined if it works. */
  readonly reason: string | undefined
}

export interface CheckReport {
  readonly turns: readonly Turn[]
  /** Checks since the last report, by outcome. */
  readonly counts: CheckCounts
}

export type CheckCounts = Readonly<Record<'good' | 'bad' | 'unknown', number>>
