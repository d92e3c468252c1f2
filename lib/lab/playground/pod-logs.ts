import { podNameOf } from './pod-state.js'
import type { KubeObject } from '../apiserver/object.js'
import type { LogFollower, PodLog } from '../apiserver/pod-requests.js'
import { mostAnswered, type Answered } from '../world/agent-protocol.js'

/** What each pod would print: a line for every request that it has answered, whoever sent it. */
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

  answered(pod: string, requests: readonly Answered[]): void {
    for (const { source, at, protocol, line } of requests) {
      const quoted = line === '' ? '' : ` "${printable(line)}"`
      this.#add(pod, `answered ${source} at ${at}/${protocol}${quoted}`)
    }
  }

  lines(pod: KubeObject): readonly string[] {
    return this.#lines.get(podNameOf(pod)) ?? []
  }

  follow(pod: KubeObject, follower: LogFollower): () => void {
    const name = podNameOf(pod)
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
    // Enough for a class; the oldest go first.
    if (lines.length > mostAnswered) lines.shift()
    this.#lines.set(pod, lines)
  }
}

/** Makes a line safe for a terminal, because a client may send anything. */
function printable(line: string): string {
  return line.replace(/[^ -~]|["\\]/g, (character) => {
    const code = character.charCodeAt(0).toString(16).padStart(2, '0')
    return /["\\]/.test(character) ? `\\${character}` : `\\x${code}`
  })
}
