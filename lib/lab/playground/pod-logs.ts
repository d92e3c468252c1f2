import { hiddenPorts } from './counters.js'
import type { KubeObject } from '../apiserver/object.js'
import type { LogFollower, PodLog } from '../apiserver/pod-requests.js'
import type { FlowRequest, FlowResult } from '../world/agent-protocol.js'

/** Enough for a class; the oldest lines go first. */
const longest = 1000

/** What each pod would print: a line for every request that it has answered. */
export class PodLogs implements PodLog {
  readonly #now: () => Date
  readonly #lines = new Map<string, string[]>()
  readonly #followers = new Map<string, Set<LogFollower>>()

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

  lines({ metadata: { name } }: KubeObject): readonly string[] {
    return this.#lines.get(name) ?? []
  }

  follow({ metadata: { name } }: KubeObject, follower: LogFollower): () => void {
    const all = this.#followers.get(name) ?? new Set()
    this.#followers.set(name, all.add(follower))
    return () => {
      all.delete(follower)
      if (all.size === 0 && this.#followers.get(name) === all) this.#followers.delete(name)
    }
  }

  forget(pod: string): void {
    this.#lines.delete(pod)
    for (const { ended } of this.#followers.get(pod) ?? []) ended()
    this.#followers.delete(pod)
  }

  #add(pod: string, words: string): void {
    const lines = this.#lines.get(pod) ?? []
    const line = `${this.#now().toISOString()} ${words}`
    lines.push(line)
    for (const { printed } of this.#followers.get(pod) ?? []) printed(line)
    if (lines.length > longest) lines.shift()
    this.#lines.set(pod, lines)
  }
}
