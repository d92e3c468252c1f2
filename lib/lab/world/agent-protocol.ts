import type { Protocol } from '../../state/names.js'
import type { Announced } from './proxy-header-reader.js'
import type { StrayRequest } from './stray-segment.js'

/** One or more conversations with a destination, each on a connection of its own. */
export interface FlowRequest {
  /** ICMP: an echo request; the port does not matter. */
  readonly protocol: Protocol | 'ICMP'
  readonly host: string
  readonly port: number
  /** Source address; the kernel's choice if absent. */
  readonly from?: string
  readonly fromPort?: number
  /** How many conversations; 1 if absent. */
  readonly count?: number
  /** How long to wait for an answer before the flow counts as dropped; `usualPatienceMs` if absent. */
  readonly timeoutMs?: number
  /** UDP: sends the request again at this interval, because an answer such as ICMP may be lost. */
  readonly repeatMs?: number
  /** Keeps the connection open under this name, for `send`. Only with a count of 1. */
  readonly keepAs?: string
  /** The least size of request and reply, to test large messages. */
  readonly payloadBytes?: number
  /** TCP: closes the sending side after the request and still expects the reply. */
  readonly halfClose?: boolean
  /** The request only measures: backends answer it, but do not report it. */
  readonly isProbe?: boolean
}

/**
 * - `reply`: a backend answered
 * - `refused`: a reset in answer to the first packet, or ICMP port unreachable
 * - `unreachable`: any other ICMP answer
 * - `closed`: the connection was opened and then ended or reset without a reply
 * - `dropped`: silence until the timeout
 */
export type FlowOutcome = 'reply' | 'refused' | 'unreachable' | 'closed' | 'dropped'

export interface FlowResult {
  readonly outcome: FlowOutcome
  /** The name of the backend that answered. */
  readonly backend?: string
  /** The address the backend saw as the client's. */
  readonly source?: string
  readonly sourcePort?: number
  /** TCP: the port of a client that got no reply. */
  readonly clientPort?: number
  /** Where it was sent without a reply, `ip:port` in turn; absent where the client cannot know. */
  readonly tried?: readonly string[]
  /** What a PROXY header told the backend, if it got one. */
  readonly announced?: Announced
  /** Absent where nothing is measured. */
  readonly latencyMs?: number
  /** The system's error text for an outcome that is not a reply. */
  readonly error?: string
}

export interface ServeRequest {
  /** The name that the backend gives in its replies. */
  readonly name: string
  /** Addresses to serve on. A UDP server must be bound to an address to answer from it. */
  readonly addresses: readonly string[]
  readonly ports: readonly number[]
  readonly protocols: readonly Protocol[]
}

/** The reply of a backend, one JSON text for each message. */
export interface BackendReply {
  readonly backend: string
  readonly source: string
  readonly port: number
  readonly announced?: Announced
  readonly pad?: string
}

export const probeWord = 'probe'

/** A request that a backend has answered. */
export interface Answered {
  readonly protocol: Protocol
  /** `ip:port` that the backend saw as the client. */
  readonly source: string
  /** `ip:port` of the backend. */
  readonly at: string
  /** The first line of a request by HTTP, as the client sent it; empty for others. */
  readonly line: string
}

/** The most requests of a backend that are reported at once; the log of a pod keeps no more. */
export const mostAnswered = 1000

/** The time for an answer that must come. A busy machine is only slow. */
export const usualPatienceMs = 60_000

/** The requests that backends answered since the last report, by the number of the listener. */
export interface AgentNews {
  readonly answered: ReadonlyMap<number, readonly Answered[]>
}

/** A network namespace; undefined: that of this process. */
export type Namespace = string | undefined

export type AgentCommand = { readonly namespace: Namespace } & (
  | { readonly op: 'write'; readonly values: Readonly<Record<string, string>> }
  | { readonly op: 'serve'; readonly request: ServeRequest; readonly listener: number | undefined }
  | { readonly op: 'stop-serving'; readonly name: string | undefined }
  | { readonly op: 'stray'; readonly request: StrayRequest }
  | { readonly op: 'flow'; readonly request: FlowRequest }
  | { readonly op: 'send'; readonly id: string; readonly timeoutMs: number }
  | { readonly op: 'forget'; readonly id: string }
)

/** The answer to a command of the same number; `error` when it failed. */
export interface AgentAnswer {
  readonly number: number
  readonly results?: readonly FlowResult[]
  readonly error?: string
}

export interface NumberedCommand {
  readonly number: number
  readonly command: AgentCommand
}

/** Where an agent serves and makes connections. */
export interface AgentPlace {
  readonly namespace: Namespace
  /** Folder of a threaded cgroup of version 2. */
  readonly cgroup: string | undefined
}
