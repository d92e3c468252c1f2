import { setTimeout as delay } from 'node:timers/promises'
import type { FlowResult } from '../world/agent-protocol.js'
import type { LogEntry, Sender } from './view.js'
import type { World } from '../world/world.js'

export interface Aim {
  readonly mode: string
  readonly sender: Sender
  readonly destination: string
  readonly port: number
}

const logLength = 60
const batch = 10
const timeoutMs = 1000
const pauseMs = 200

/** Sends requests in the scene and keeps who answered. */
export class Traffic {
  readonly #world: World
  readonly #changed: () => void
  readonly #answers = new Map<string, number>()
  #log: readonly LogEntry[] = []
  #asked = 0
  #continuous: AbortController | undefined
  #running: Promise<void> = Promise.resolve()

  constructor(world: World, changed: () => void) {
    this.#world = world
    this.#changed = changed
  }

  get answers(): ReadonlyMap<string, number> {
    return this.#answers
  }

  get log(): readonly LogEntry[] {
    return this.#log
  }

  get asked(): number {
    return this.#asked
  }

  get isContinuous(): boolean {
    return this.#continuous !== undefined
  }

  async send(count: number, aim: () => Aim): Promise<void> {
    for (let left = count; left > 0; left -= batch) await this.#ask(Math.min(batch, left), aim())
  }

  /** Sends one after the other until told otherwise. */
  setContinuous(isOn: boolean, aim: () => Aim): void {
    if (!isOn) {
      this.#continuous?.abort()
      this.#continuous = undefined
    } else if (!this.#continuous) {
      this.#continuous = new AbortController()
      const before = this.#running
      const { signal } = this.#continuous
      this.#running = before.then(() => this.#keepSending(signal, aim))
    }
  }

  clear(): void {
    this.#answers.clear()
    this.#log = []
    this.#asked = 0
  }

  async close(): Promise<void> {
    this.#continuous?.abort()
    this.#continuous = undefined
    await this.#running
  }

  async #keepSending(signal: AbortSignal, aim: () => Aim): Promise<void> {
    while (!signal.aborted) {
      await this.#ask(1, aim())
      await delay(pauseMs, undefined, { signal }).catch(() => undefined)
    }
  }

  async #ask(count: number, aim: Aim): Promise<void> {
    const { sender, destination, port } = aim
    const results = await this.#world
      .agent(sender)
      .flow({ protocol: 'TCP', host: destination, port, count, timeoutMs })
    for (const result of results) this.#record(aim, result)
    this.#changed()
  }

  #record({ mode, sender, destination, port }: Aim, result: FlowResult): void {
    const answer = result.backend ?? result.outcome
    this.#asked++
    this.#answers.set(answer, (this.#answers.get(answer) ?? 0) + 1)
    const entry: LogEntry = {
      number: this.#asked,
      sender,
      target: `${destination}:${port}`,
      mode,
      answer,
      isAnswered: result.backend !== undefined,
      source: result.source ?? '',
      milliseconds: Math.round(result.latencyMs * 10) / 10,
    }
    this.#log = [entry, ...this.#log.slice(0, logLength - 1)]
  }
}
