import { pause } from '../../async.js'
import type { FlowResult } from '../world/agent-protocol.js'
import type { Ground } from './ground.js'
import type { LogEntry, Sender } from '../../page/view.js'
import type { Place } from '../world/topology.js'

export interface Aim {
  readonly mode: string
  readonly sender: Sender
  /** Where the sender is; undefined when there is nobody to send. */
  readonly place: Place | undefined
  readonly protocol: 'TCP' | 'UDP'
  readonly destination: string
  readonly port: number
}

export interface TrafficListener {
  readonly changed: () => void
  /** After every request, oldest first. */
  readonly recorded: (entry: LogEntry) => void
}

const logLength = 60
const batch = 10
const timeoutMs = 1000
const pauseMs = 200
/** A UDP client that keeps its socket, as resolvers do: the kernel takes that for one flow. */
const udpClientPort = 40_007

/** Sends requests in the scene and keeps who answered. */
export class Traffic {
  readonly #ground: Ground
  readonly #listener: TrafficListener
  readonly #answers = new Map<string, number>()
  #log: readonly LogEntry[] = []
  #asked = 0
  #continuous: AbortController | undefined
  #running: Promise<void> = Promise.resolve()

  constructor(ground: Ground, listener: TrafficListener) {
    this.#ground = ground
    this.#listener = listener
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
    for (let left = count; left > 0;) {
      const now = aim()
      const size = now.protocol === 'UDP' ? 1 : Math.min(batch, left)
      await this.#ask(size, now)
      left -= size
    }
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
      await pause(pauseMs, signal)
    }
  }

  async #ask(count: number, aim: Aim): Promise<void> {
    const { place, protocol, destination, port } = aim
    if (place === undefined || destination === '') return
    const from = protocol === 'UDP' ? { fromPort: udpClientPort } : {}
    const request = { protocol, host: destination, port, count, timeoutMs, ...from }
    const results = await this.#ground.flow(place, request)
    for (const result of results) this.#record(aim, place, result)
    this.#listener.changed()
  }

  #record({ mode, sender, destination, port }: Aim, place: Place, result: FlowResult): void {
    const answer = result.backend ?? result.outcome
    this.#asked++
    this.#answers.set(answer, (this.#answers.get(answer) ?? 0) + 1)
    const source = result.source ?? ''
    const entry: LogEntry = {
      number: this.#asked,
      sender,
      target: `${destination}:${port}`,
      mode,
      answer,
      isAnswered: result.backend !== undefined,
      source,
      isSourceKept: this.#ground.site.addresses[place].includes(source),
      milliseconds: Math.round(result.latencyMs * 10) / 10,
    }
    this.#log = [entry, ...this.#log.slice(0, logLength - 1)]
    this.#listener.recorded(entry)
  }
}
