import { at, listAt, textAt, textsAt, type Json } from '../apiserver/json.js'
import { podStateOf } from './pod-state.js'
import type { KubeObject } from '../apiserver/object.js'
import type { StoreEvent, VersionedStore } from '../apiserver/store.js'
import type { TimelineStep, TimelineView } from './view.js'

export interface TimelineDeps {
  readonly store: VersionedStore
  /** Milliseconds since 1970, with fractions; the daemon's clock is the same one. */
  readonly now: () => number
  /** Makes connections until the pod answers; false if it did not within the time there is. */
  readonly reach: (pod: string) => Promise<boolean>
  /** Whether the daemon is at work; one that just starts has other things to do. */
  readonly isIdle: () => boolean
  readonly changed: () => void
}

/** A line of the daemon's log, as far as it is read here. */
export interface DaemonLine {
  readonly at: number
  readonly message: string
  readonly family: string
  readonly planMs: number
  readonly applyMs: number
}

interface Running {
  readonly pod: string
  readonly ip: string
  readonly startedAt: number
  steps: readonly TimelineStep[]
}

export const changeSeen = 'change seen, sync asked for'
export const syncMeasured = 'sync measured'

/** Follows one pod from ready to its first connection, with the times at which each part did its work. */
export class Timeline {
  readonly #deps: TimelineDeps
  #running: Running | undefined
  #view: TimelineView | null = null

  constructor(deps: TimelineDeps) {
    this.#deps = deps
  }

  get view(): TimelineView | null {
    return this.#view
  }

  /** Returns how to stop. */
  follow(): () => void {
    const { store } = this.#deps
    const stops = [
      store.subscribe('pods', (event) => this.#pod(event)),
      store.subscribe('endpointslices.discovery.k8s.io', ({ object }) => this.#slice(object)),
    ]
    return () => {
      for (const stop of stops) stop()
    }
  }

  /** The daemon says what it does in its log. */
  daemonSaid(line: DaemonLine): void {
    const running = this.#running
    if (!running || !has(running, 'EndpointSlice')) return
    if (line.message === changeSeen && !has(running, 'watch event')) {
      this.#step('watch event', 'kube-proxy hears of the EndpointSlice', line.at)
    }
    if (line.message !== syncMeasured || line.family !== 'IPv4') return
    if (!has(running, 'watch event') || has(running, 'kernel')) return
    const began = line.at - line.planMs - line.applyMs
    this.#step('sync', 'kube-proxy begins; changes of a while are taken together', began)
    this.#step('plan', 'what the kernel should hold is worked out', began + line.planMs)
    this.#step('kernel', 'the difference is written and in force', line.at)
    void this.#connect(running)
  }

  #pod({ object, previous }: StoreEvent): void {
    const isNew = podStateOf(object) === 'ready' && (!previous || podStateOf(previous) !== 'ready')
    if (!isNew || !this.#deps.isIdle()) return
    const now = this.#deps.now()
    // One at a time; what takes longer than this never arrives.
    if (this.#running && now - this.#running.startedAt < patienceMs) return
    const { name } = object.metadata
    const ip = textAt(object, 'status', 'podIP')
    this.#running = { pod: name, ip, startedAt: now, steps: [] }
    this.#step('pod ready', `the kubelet reports ${name} as ready`, now)
  }

  #slice(slice: KubeObject): void {
    const running = this.#running
    if (!running || has(running, 'EndpointSlice')) return
    const isIn = listAt(slice, 'endpoints').some(
      (endpoint) =>
        textsAt(endpoint, 'addresses').includes(running.ip) && isReadyEndpoint(endpoint),
    )
    if (isIn) this.#step('EndpointSlice', 'its controller lists the pod as ready', this.#deps.now())
  }

  async #connect(running: Running): Promise<void> {
    const isReached = await this.#deps.reach(running.pod)
    if (this.#running !== running) return
    if (isReached) {
      this.#step('first connection', `a new connection lands at ${running.pod}`, this.#deps.now())
      this.#running = undefined
      return
    }
    this.#running = undefined
    if (!this.#view) return
    const note = 'No new connection landed at the pod: affinity or a policy keeps them elsewhere.'
    this.#view = { ...this.#view, note }
    this.#deps.changed()
  }

  #step(name: string, what: string, when: number): void {
    const running = this.#running
    if (!running) return
    // Clocks of two processes agree to a millisecond, not better: nothing goes back in time.
    const earliest = running.steps.at(-1)?.atMs ?? 0
    const atMs = Math.max(earliest, Math.round((when - running.startedAt) * 10) / 10)
    running.steps = [...running.steps, { name, what, atMs }]
    this.#view = { title: `Pod ${running.pod} becomes ready`, steps: running.steps, note: '' }
    this.#deps.changed()
  }
}

const patienceMs = 8000

function has({ steps }: Running, name: string): boolean {
  return steps.some((step) => step.name === name)
}

function isReadyEndpoint(endpoint: Json): boolean {
  return at(endpoint, 'conditions', 'ready') !== false
}

/** A line of JSON as the daemon logs it, or undefined for anything else. */
export function parseDaemonLine(text: string): DaemonLine | undefined {
  try {
    const line = JSON.parse(text) as Readonly<Record<string, unknown>>
    const number = (key: string) => (typeof line[key] === 'number' ? line[key] : 0)
    const word = (key: string) => (typeof line[key] === 'string' ? line[key] : '')
    return {
      at: Date.parse(word('time')),
      message: word('msg'),
      family: word('family'),
      planMs: number('planMs'),
      applyMs: number('applyMs'),
    }
  } catch {
    return undefined
  }
}
