import { hiddenPorts } from './counters.js'
import type { FlowRequest, FlowResult } from '../world/agent-protocol.js'

/** Enough for a class; the oldest lines go first. */
const longest = 1000

/** What each pod would print: a line for every request that it has answered. */
export class PodLogs {
  readonly #now: () => Date
  readonly #lines = new Map<string, string[]>()

  constructor(now: () => Date = () => new Date()) {
    this.#now = now
  }

  started(pod: string, ports: readonly number[]): void {
    this.#add(pod, `listens on ${ports.join(', ')}`)
  }

  /** Requests of the page's own, which measure, are not among them. */
  answered(
    { protocol, host, port, fromPort = 0 }: FlowRequest,
    results: readonly FlowResult[],
  ): void {
    if (fromPort >= hiddenPorts.first && fromPort <= hiddenPorts.last) return
    for (const { backend, source = '' } of results) {
      if (backend === undefined) continue
      this.#add(backend, `answered ${source} (asked for ${host}:${port}/${protocol})`)
    }
  }

  linesOf(pod: string): readonly string[] {
    return this.#lines.get(pod) ?? []
  }

  forget(pod: string): void {
    this.#lines.delete(pod)
  }

  #add(pod: string, words: string): void {
    const lines = this.#lines.get(pod) ?? []
    lines.push(`${this.#now().toISOString()} ${words}`)
    if (lines.length > longest) lines.shift()
    this.#lines.set(pod, lines)
  }
}
