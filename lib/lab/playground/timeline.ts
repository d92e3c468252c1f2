import { pause } from '../../async.js'
import { asObject, asString, parseJson } from '../../state/json.js'
import { at, listAt, textAt, textsAt, type Json } from '../apiserver/json.js'
import { podNameOf, podStateOf } from './pod-state.js'
import type { KubeObject } from '../apiserver/object.js'
import type { StoreEvent, VersionedStore } from '../apiserver/store.js'
import type { TimelineStep, TimelineView } from '../../page/view.js'

interface TimelineDeps {
  readonly store: VersionedStore
  /** Milliseconds since 1970, with fractions; the daemon's clock is the same one. */
  readonly now: () => number
  /** Makes connections until the pod answers; false if it does not answer in time. */
  readonly reach: (pod: string) => Promise<boolean>
  /**
   * Whether nothing else is under way, such as a start of the daemon, and the Service to which `reach` makes
   * connections selects this pod.
   */
  readonly isOfInterest: (pod: KubeObject) => boolean
  readonly changed: () => void
}

/** The parts of a line of the daemon's log that are read here. */
export interface DaemonLine {
  readonly at: number
  readonly message: string
  readonly family: string
  readonly planMs: number
  readonly applyMs: number
  /** The object that the line is about, if it is about one. */
  readonly kind: string
  readonly namespace: string
  readonly name: string
  /** Its resource version. */
  readonly version: number
}

interface Running {
  readonly pod: string
  readonly ip: string
  readonly startedAt: number
  /** When its controller listed the pod as ready. */
  listedAt?: number
  /** When the daemon received changes since then. */
  readonly heard: number[]
  readonly syncs: DaemonLine[]
  landedAt?: number
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

  /** Follows the objects, until the returned functions are called. */
  follow(): readonly (() => void)[] {
    const { store } = this.#deps
    return [
      store.subscribe('pods', (event) => this.#pod(event)),
      store.subscribe('endpointslices.discovery.k8s.io', ({ object }) => this.#slice(object)),
    ]
  }

  /** Reads a line of the daemon's log. */
  daemonSaid(line: DaemonLine): void {
    const running = this.#running
    // Log lines about earlier work arrive late.
    if (running?.listedAt === undefined || line.at < running.listedAt - clockMs) return
    if (line.message === changeSeen) running.heard.push(line.at)
    else if (line.message === syncMeasured && line.family === 'IPv4') {
      running.syncs.push(line)
      if (running.syncs.length === 1) void this.#connect(running)
    } else return
    this.#draw(running)
  }

  #pod({ object, previous }: StoreEvent): void {
    const isNew = podStateOf(object) === 'ready' && (!previous || podStateOf(previous) !== 'ready')
    if (!isNew || !this.#deps.isOfInterest(object)) return
    const now = this.#deps.now()
    // Only one pod is followed at a time. After this time its connection is given up.
    if (this.#running && now - this.#running.startedAt < patienceMs) return
    const name = podNameOf(object)
    const ip = textAt(object, 'status', 'podIP')
    this.#running = { pod: name, ip, startedAt: now, heard: [], syncs: [] }
    this.#draw(this.#running)
  }

  #slice(slice: KubeObject): void {
    const running = this.#running
    if (!running || running.listedAt !== undefined) return
    const isIn = listAt(slice, 'endpoints').some(
      (endpoint) =>
        textsAt(endpoint, 'addresses').includes(running.ip) && isReadyEndpoint(endpoint),
    )
    if (!isIn) return
    running.listedAt = this.#deps.now()
    this.#draw(running)
  }

  async #connect(running: Running): Promise<void> {
    const isReached = await this.#deps.reach(running.pod)
    if (this.#running !== running) return
    if (isReached) running.landedAt = this.#deps.now()
    // The daemon's log lines about the last sync may arrive a moment later.
    await pause(lineMs, undefined)
    this.#draw(running)
    this.#running = undefined
    if (isReached || !this.#view) return
    const note =
      'No new connection reached the pod: affinity or a policy sends them to other pods, or it does not listen on the port of the Service.'
    this.#view = { ...this.#view, note }
    this.#deps.changed()
  }

  #draw(running: Running): void {
    const { pod, startedAt, listedAt, landedAt } = running
    const steps: TimelineStep[] = []
    const step = (name: string, what: string, when: number | undefined) => {
      if (when === undefined) return
      // The clocks of two processes may differ by a millisecond, so no step is shown before the one
      // it follows.
      const earliest = steps.at(-1)?.atMs ?? 0
      steps.push({ name, what, atMs: Math.max(earliest, Math.round((when - startedAt) * 10) / 10) })
    }
    step('pod ready', `the kubelet reports ${pod} as ready`, startedAt)
    step('EndpointSlice', 'its controller lists the pod as ready', listedAt)
    const sync = effective(running)
    const began = sync && beginningOf(sync)
    step('watch event', 'kube-proxy receives the EndpointSlice', heardBefore(running, began))
    step('sync', 'kube-proxy begins; it takes several changes together', began)
    step('plan', 'kube-proxy computes what the kernel should have', sync && sync.at - sync.applyMs)
    // Rules are used as soon as they are written, before the tool that wrote them has ended.
    const inForce = sync && Math.min(sync.at, landedAt ?? Infinity)
    step('kernel', 'kube-proxy writes the difference, and it takes effect', inForce)
    step('first connection', `a new connection reaches ${pod}`, landedAt)
    this.#view = { title: `Pod ${pod} becomes ready`, steps, note: '' }
    this.#deps.changed()
  }
}

/**
 * The sync that wrote the rules of the pod: the last one that began before the first connection. An
 * earlier one may be for another change, without the pod. Without a connection it is the first one: the
 * last one may be for a change of much later.
 */
function effective({ syncs, landedAt = -Infinity }: Running): DaemonLine | undefined {
  return syncs.findLast((sync) => beginningOf(sync) <= landedAt + clockMs) ?? syncs[0]
}

function beginningOf({ at, planMs, applyMs }: DaemonLine): number {
  return at - planMs - applyMs
}

function heardBefore({ heard }: Running, began = Infinity): number | undefined {
  return heard.findLast((at) => at <= began + clockMs) ?? heard[0]
}

/** Log lines have whole milliseconds. */
const clockMs = 1
const lineMs = 150
const patienceMs = 8000

function isReadyEndpoint(endpoint: Json): boolean {
  return at(endpoint, 'conditions', 'ready') !== false
}

/** A line of JSON as the daemon logs it, or undefined for anything else. */
export function parseDaemonLine(text: string): DaemonLine | undefined {
  const line = asObject(parseJson(text))
  if (!line) return undefined
  const number = (key: string) => (typeof line[key] === 'number' ? line[key] : 0)
  const word = (key: string) => asString(line[key]) ?? ''
  return {
    at: Date.parse(word('time')),
    message: word('msg'),
    family: word('family'),
    planMs: number('planMs'),
    applyMs: number('applyMs'),
    kind: word('kind'),
    namespace: word('namespace'),
    name: word('name'),
    version: Number(word('resourceVersion')),
  }
}
