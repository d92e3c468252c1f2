/** What happened at one listener since the last report; crosses from the worker as a message. */
export interface ListenerCounts {
  readonly key: string
  /** Connections, or UDP clients, open now. */
  readonly active: number
  /** Closed without an endpoint: there is none, all dials failed, or there were no descriptors. */
  readonly refused: number
  readonly endpoints: readonly EndpointCounts[]
  /** `Target.key` of those that left, and have had no traffic for a while. */
  readonly left: readonly string[]
}

/** What happened at one endpoint of one listener since the last report; data paths add to it. */
export class EndpointTraffic {
  connections = 0
  dialErrors = 0
  /** The endpoint got a PROXY header and ended the connection without sending a byte. */
  headersRefused = 0
  /** The endpoint accepted, but reset at once, or its first byte came too late. */
  resets = 0
  lateAnswers = 0
  /** Connections that ended because one side did not answer any more. */
  deadClients = 0
  deadEndpoints = 0
  bytesToEndpoint = 0
  bytesToClient = 0
  /** How long some dials took, in seconds. Not all, so that the message stays short in a burst. */
  readonly dialSeconds: number[] = []
  /** Reports in a row without news about an endpoint that left. */
  quietReports = 0

  dialed(milliseconds: number): void {
    this.connections++
    if (this.dialSeconds.length < dialSampleSize) this.dialSeconds.push(milliseconds / 1000)
  }
}

/** `endpoint` is a `Target.key`. */
type EndpointCounts = ReturnType<typeof takeCounts>

function takeCounts(endpoint: string, traffic: EndpointTraffic) {
  const { quietReports, ...counts } = traffic
  Object.assign(traffic, new EndpointTraffic())
  return { endpoint, ...counts }
}

const { dialSeconds, quietReports, ...nothing } = new EndpointTraffic()
const counters = Object.keys(nothing) as (keyof typeof nothing)[]

/** It is asked of all endpoints every second, while connections wait. So it makes no objects. */
function isQuiet(traffic: EndpointTraffic): boolean {
  for (const counter of counters) if (traffic[counter] !== 0) return false
  return true
}

/** Errors of a connection whose peer answers no more. The kernel gives the last one it heard of. */
const silences: ReadonlySet<string> = new Set(['ETIMEDOUT', 'EHOSTUNREACH', 'ENETUNREACH'])

export function isSilence(error: string | undefined): boolean {
  return error !== undefined && silences.has(error)
}

/** Counts a connection that ended by an error, if the reason is that one side is gone. */
export function countSilence(
  traffic: EndpointTraffic,
  side: 'client' | 'endpoint',
  error: string,
): void {
  if (!isSilence(error)) return
  if (side === 'client') traffic.deadClients++
  else traffic.deadEndpoints++
}

/** Counters of one listener. */
export class ListenerTraffic {
  active = 0
  refused = 0
  readonly #endpoints = new Map<string, EndpointTraffic>()
  #activeReported = 0

  of(endpoint: string): EndpointTraffic {
    let traffic = this.#endpoints.get(endpoint)
    if (!traffic) this.#endpoints.set(endpoint, (traffic = new EndpointTraffic()))
    return traffic
  }

  /** Undefined when nothing changed. Endpoints that nobody needs are forgotten after a while. */
  take(key: string, isNeeded: (endpoint: string) => boolean): ListenerCounts | undefined {
    const endpoints: EndpointCounts[] = []
    const left: string[] = []
    for (const [endpoint, traffic] of this.#endpoints) {
      if (!isQuiet(traffic)) {
        endpoints.push(takeCounts(endpoint, traffic))
        continue
      }
      traffic.quietReports = isNeeded(endpoint) ? 0 : traffic.quietReports + 1
      if (traffic.quietReports >= lastReports) {
        this.#endpoints.delete(endpoint)
        left.push(endpoint)
      }
    }
    const { active, refused } = this
    const isSame = refused === 0 && active === this.#activeReported
    if (endpoints.length === 0 && left.length === 0 && isSame) return undefined
    this.refused = 0
    this.#activeReported = active
    return { key, active, refused, endpoints, left }
  }
}

/** Two minutes, so that whoever reads the metrics once a minute sees the last numbers. */
export const lastReports = 120

const dialSampleSize = 16
