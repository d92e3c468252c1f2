import type { Protocol } from '../../state/names.js'
import type { FlowMessage } from '../../kernel/flow-message.js'

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

/** A reset that answers the first packet has neither options nor data, unlike every acceptance. */
const resetBytes = { IPv4: 40, IPv6: 60 } as const

/** What became of a connection that has ended, from the packets that the kernel counted. */
export function outcomeOf(flow: FlowMessage): Pick<FlowLine, 'verdict' | 'why'> {
  const { hasCounters, family, packetsToClient, bytesToClient } = flow
  // A client of UDP need not wait for an answer.
  if (hasCounters && flow.protocolName === 'TCP') {
    if (packetsToClient === 0) return { verdict: 'refused', why: 'no answer' }
    if (packetsToClient === 1 && bytesToClient === resetBytes[family]) {
      return { verdict: 'refused', why: 'ECONNREFUSED' }
    }
  }
  return { verdict: 'forwarded', why: '' }
}

/** Lets so many lines a second through, and counts the others. */
export class Sampler {
  readonly #perSecond: number
  readonly #now: () => number
  readonly #isLeftOut: () => void
  #second = -1
  #passed = 0
  #leftOut = 0

  /** `now` returns milliseconds. `isLeftOut` is called for each line that may not pass. */
  constructor(perSecond: number, now: () => number, isLeftOut: () => void = () => undefined) {
    this.#perSecond = perSecond
    this.#now = now
    this.#isLeftOut = isLeftOut
  }

  /** Whether the next line may pass. */
  admits(): boolean {
    const second = Math.floor(this.#now() / 1000)
    if (second !== this.#second) this.#passed = 0
    this.#second = second
    if (this.#passed < this.#perSecond) {
      this.#passed++
      return true
    }
    this.#leftOut++
    this.#isLeftOut()
    return false
  }

  /** How many were left out since the last call. */
  takeLeftOut(): number {
    const leftOut = this.#leftOut
    this.#leftOut = 0
    return leftOut
  }
}
