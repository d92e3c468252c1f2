import { pause } from '../../async.js'
import { sentTo } from './sent-to.js'
import type { FlowResult } from '../world/agent-protocol.js'
import type { TestBed } from './test-bed.js'
import { ConfigError } from '../../errors.js'
import type { LogEntry, Sender, ServiceView, View } from '../../page/view.js'
import type { PodRoom } from './cluster-layout.js'

export interface TrafficRequest {
  readonly mode: string
  readonly sender: Sender
  /** Where the sender is; undefined when no pod can send. */
  readonly room: PodRoom | undefined
  readonly protocol: ServiceView['protocol']
  readonly destination: string
  readonly port: number
}

interface TrafficOptions {
  /** The request that the page's choices make now. */
  readonly next: () => TrafficRequest
  /** The name of the pod at `ip:port`. */
  readonly podAt: (endpoint: string) => string | undefined
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

/** Sends requests in the cluster and counts the answers of each pod. */
export class Traffic {
  readonly #testBed: Pick<TestBed, 'layout' | 'flow' | 'gauge'>
  readonly #options: TrafficOptions
  readonly #answers = new Map<string, number>()
  #log: readonly LogEntry[] = []
  #asked = 0
  /** The number of the latest line of the log. */
  #number = 0
  #continuous: AbortController | undefined
  #running: Promise<void> = Promise.resolve()

  constructor(testBed: Pick<TestBed, 'layout' | 'flow' | 'gauge'>, options: TrafficOptions) {
    this.#testBed = testBed
    this.#options = options
  }

  get view(): Pick<View, 'continuous' | 'answers' | 'asked' | 'log'> {
    return {
      continuous: this.#continuous !== undefined,
      answers: [...this.#answers].map(([name, count]) => ({ name, count })),
      asked: this.#asked,
      log: this.#log,
    }
  }

  async send(count: number): Promise<void> {
    const { next } = this.#options
    const first = next()
    refuseSctp(first)
    refuseNothing(first)
    for (let left = count; left > 0;) {
      const request = next()
      const size = request.protocol === 'UDP' ? 1 : Math.min(batch, left)
      await this.#ask(size, request)
      left -= size
    }
  }

  /** Starts or stops sending one request after the other. */
  setContinuous(isOn: boolean): void {
    if (!isOn) {
      this.#continuous?.abort()
      this.#continuous = undefined
    } else if (!this.#continuous) {
      refuseSctp(this.#options.next())
      this.#continuous = new AbortController()
      const before = this.#running
      const { signal } = this.#continuous
      this.#running = before.then(() => this.#keepSending(signal))
    }
  }

  clear(): void {
    this.clearAnswers()
    this.#log = []
    this.#number = 0
  }

  /** Keeps the log, so that one mode can be compared with another. */
  clearAnswers(): void {
    this.#answers.clear()
    this.#asked = 0
  }

  async close(): Promise<void> {
    this.setContinuous(false)
    await this.#running
  }

  async #keepSending(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      await this.#ask(1, this.#options.next())
      await pause(pauseMs, signal)
    }
  }

  async #ask(count: number, asked: TrafficRequest): Promise<void> {
    const { room, sender, protocol, destination, port } = asked
    if (room === undefined || destination === '' || protocol === 'SCTP') return
    const from = {
      ...(protocol === 'UDP' ? { fromPort: udpClientPort } : {}),
      // Pods share places, so the pod must choose its address.
      ...(sender === 'backend' ? { from: room.addresses[0] ?? '' } : {}),
    }
    const request = { protocol, host: destination, port, count, timeoutMs, ...from }
    const results = await this.#testBed.flow(room.place, request)
    const { addresses } = room
    const endpoints = await sentTo(this.#testBed, { mode: asked.mode, addresses, request }, results)
    const nameOf = (endpoint: string) => this.#options.podAt(endpoint) ?? endpoint
    for (const [index, result] of results.entries()) {
      this.#record(asked, room, { ...result, sentTo: endpoints[index]?.map(nameOf) ?? null })
    }
    this.#options.changed()
  }

  #record(
    { mode, sender, destination, port }: TrafficRequest,
    room: PodRoom,
    result: FlowResult & Pick<LogEntry, 'sentTo'>,
  ): void {
    const { latencyMs } = result
    const answer = result.backend ?? result.outcome
    const at = result.backend === undefined && result.sentTo?.length ? result.sentTo : []
    const name = [answer, ...at.slice(-1)].join(' at ')
    this.#asked++
    this.#number++
    this.#answers.set(name, (this.#answers.get(name) ?? 0) + 1)
    const source = result.source ?? ''
    const entry: LogEntry = {
      number: this.#number,
      sender,
      target: `${destination}:${port}`,
      mode,
      answer,
      isAnswered: result.backend !== undefined,
      sentTo: result.sentTo,
      source,
      isSourceKept: room.addresses.includes(source),
      milliseconds: latencyMs === undefined ? null : Math.round(latencyMs * 10) / 10,
    }
    this.#log = [entry, ...this.#log.slice(0, logLength - 1)]
    this.#options.recorded(entry)
  }
}

function refuseSctp({ protocol, destination, port }: TrafficRequest): void {
  if (protocol !== 'SCTP') return
  throw new ConfigError(
    `send to ${destination}:${port}: the Service is SCTP, and the playground sends TCP and UDP only; its way and its rules are shown`,
  )
}

/** While requests are kept on, a Service or a pod may still come. One request would go unheard. */
function refuseNothing({ room, destination }: TrafficRequest): void {
  if (destination === '') {
    throw new ConfigError('send a request: there is no such Service or address; choose another')
  }
  if (room === undefined) throw new ConfigError('send a request: no pod can send it; add one')
}
