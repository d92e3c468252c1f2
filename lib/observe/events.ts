import { randomBytes } from 'node:crypto'
import { Bell, pause } from '../async.js'
import { messageOf } from '../errors.js'
import { Backoff } from '../sources/backoff.js'
import { EventLanes } from './event-lanes.js'
import type { Log, Meter } from '../modes/mode.js'
import type { ApiClient } from '../sources/api-client.js'

/** The object that an Event regards. */
interface EventTarget {
  readonly kind: 'Node' | 'Service' | 'EndpointSlice' | 'ServiceCIDR'
  /** Empty for a Node. */
  readonly namespace: string
  readonly name: string
}

export interface ProxyEvent {
  readonly type: 'Normal' | 'Warning'
  /** One word such as `Starting` (EV01-EV05). */
  readonly reason: string
  /** What was done, such as `StartKubeProxy` or `Listen`. */
  readonly action: string
  readonly note: string
  readonly regarding: EventTarget
}

/** Records Events on objects. Never fails, never waits. */
export interface EventRecorder {
  record(event: ProxyEvent): void
  /** Sends what is recorded, until the signal. */
  run?(signal: AbortSignal): Promise<void>
}

/**
 * Logs Events where there is no API server. The level is debug, because other lines tell the same.
 */
export function logEvents(log: Log): EventRecorder {
  return {
    record: ({ type, reason, action, note, regarding: { kind, namespace, name } }) => {
      log.debug({ type, reason, action, kind, namespace, name }, `event: ${note}`)
    },
  }
}

interface ApiEventsOptions {
  readonly client: Pick<ApiClient, 'create' | 'uidOf'>
  readonly nodeName: string
  readonly log: Log
  readonly meter: Pick<Meter, 'count'>
  /** Milliseconds of a clock that nobody can set. */
  readonly now?: () => number
  readonly sleep?: typeof pause
  /** How many Events may be sent at once, and how many more each minute. */
  readonly burst?: number
  readonly perMinute?: number
}

const apiVersions: Readonly<Record<EventTarget['kind'], string>> = {
  Node: 'v1',
  Service: 'v1',
  EndpointSlice: 'discovery.k8s.io/v1',
  ServiceCIDR: 'networking.k8s.io/v1',
}

/** How often an Event is sent to a server that may take it later, and the longest time between. */
const mostTries = 12
const longestRetryMs = 13_000

/** The API refuses a longer note. It counts bytes. */
const longestNote = 1024

/** Reasons of Events about what an object asks for. A start may give thousands of them. */
const complaints: ReadonlySet<string> = new Set([
  'MalformedObject',
  'PartLeftOut',
  'BalancedOtherwise',
  'NotInThisMode',
])

/**
 * These tell how an object is now, so a newer one takes the place of one that waits. Others tell
 * one of several things about it.
 */
const newestCounts: ReadonlySet<string> = new Set([
  'EndpointFailing',
  'EndpointWorking',
  'MalformedObject',
])

/**
 * Writes events.k8s.io/v1 Events (EV06). Beyond the rate they wait, so that they do not add to the
 * load of a cluster in trouble. While the API server is away, they wait as well.
 */
export class ApiEvents implements EventRecorder {
  readonly #options: Required<ApiEventsOptions>
  readonly #waiting = new EventLanes<EventBody>()
  #tokens: number
  #refilledAt: number
  readonly #bell = new Bell()
  #isFull = false

  constructor(options: ApiEventsOptions) {
    const defaults = { now: () => performance.now(), sleep: pause, burst: 25, perMinute: 12 }
    this.#options = { ...defaults, ...options }
    this.#tokens = this.#options.burst
    this.#refilledAt = this.#options.now()
  }

  record(event: ProxyEvent): void {
    const { reason, regarding } = event
    const body = bodyOf(event, this.#options.nodeName, new Date())
    const { kind, namespace, name } = regarding
    const fact = newestCounts.has(reason) ? '' : body.note
    const key = JSON.stringify([kind, namespace, name, reason, fact])
    const lane = complaints.has(reason) ? 'complaints' : 'news'
    if (!this.#waiting.put(lane, key, body)) this.#leaveOut(event)
    this.#bell.ring()
  }

  /** Events are sent one at a time, so that a burst of them opens one connection. */
  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const ms = this.#waiting.isEmpty ? Infinity : this.#msUntilToken()
      if (ms > 0) {
        await this.#options.sleep(ms, signal, this.#bell)
        this.#bell.silence()
        continue
      }
      this.#tokens--
      const body = this.#waiting.take()
      if (body) await this.#send(body, signal)
      if (this.#waiting.isEmpty) this.#isFull = false
    }
  }

  #msUntilToken(): number {
    const { now, burst, perMinute } = this.#options
    const time = now()
    const perMs = perMinute / 60_000
    this.#tokens = Math.min(burst, this.#tokens + (time - this.#refilledAt) * perMs)
    this.#refilledAt = time
    return this.#tokens >= 1 ? 0 : Math.ceil((1 - this.#tokens) / perMs)
  }

  async #send(body: EventBody, signal: AbortSignal): Promise<void> {
    const { client, log, meter, sleep } = this.#options
    const path = `/apis/events.k8s.io/v1/${inNamespace(body.metadata.namespace)}events`
    let named = body
    const backoff = new Backoff(longestRetryMs, Math.random)
    let error: string | undefined
    for (let tries = 0; tries < mostTries; tries++) {
      // Nodes that lost the same API server do not come back at the same moment.
      if (tries > 0) await sleep(backoff.next(longestRetryMs), signal)
      if (signal.aborted) return
      try {
        named = await this.#withUid(named, signal)
        error = await client.create(path, named, signal)
        break
      } catch (failure) {
        error = messageOf(failure)
      }
    }
    if (error === undefined) return
    const { namespace = '', name } = body.regarding
    log.debug({ event: body.reason, namespace, name, error }, 'Event not sent')
    meter.count('events_left_out_total', {})
  }

  /** `kubectl describe` shows only Events with the uid of the object. No watch keeps these. */
  async #withUid(body: EventBody, signal: AbortSignal): Promise<EventBody> {
    const { kind, apiVersion, name, namespace, uid } = body.regarding
    if (uid !== undefined) return body
    const group = apiVersion === 'v1' ? '/api/v1' : `/apis/${apiVersion}`
    const path = `${group}/${inNamespace(namespace)}${kind.toLowerCase()}s`
    const found = await this.#options.client.uidOf(path, name, signal)
    return found === undefined ? body : { ...body, regarding: { ...body.regarding, uid: found } }
  }

  #leaveOut({ reason, regarding: { namespace, name } }: ProxyEvent): void {
    const { log, meter } = this.#options
    meter.count('events_left_out_total', {})
    if (this.#isFull) return
    this.#isFull = true
    const text = 'too many Events wait to be sent; more are left out until there is room'
    log.warn({ event: reason, namespace, name }, text)
  }
}

type EventBody = ReturnType<typeof bodyOf>

function bodyOf(event: ProxyEvent, nodeName: string, time: Date) {
  const { kind, namespace, name } = event.regarding
  return {
    apiVersion: 'events.k8s.io/v1',
    kind: 'Event',
    metadata: {
      // Unique, and with the name of the object, because kubectl shows this name in its list.
      name: `${name.slice(0, 200)}.${randomBytes(8).toString('hex')}`,
      // The Event of an object without a namespace is in the default namespace.
      namespace: namespace === '' ? 'default' : namespace,
    },
    // The API requires microseconds.
    eventTime: time.toISOString().replace('Z', '000Z'),
    reportingController: 'kube-proxy',
    reportingInstance: `kube-proxy-${nodeName}`.slice(0, 128),
    action: event.action,
    reason: event.reason,
    type: event.type,
    note: shortened(event.note),
    // The uid of a Node is its name here, as in Events of kubelet; kubectl looks for that.
    regarding: {
      apiVersion: apiVersions[kind],
      kind,
      name,
      ...(namespace === '' ? {} : { namespace }),
      ...(kind === 'Node' ? { uid: name } : {}),
    },
  }
}

/** Cuts a long note, never inside a character. */
function shortened(note: string): string {
  if (Buffer.byteLength(note) <= longestNote) return note
  const room = new Uint8Array(longestNote - Buffer.byteLength('…'))
  return `${note.slice(0, new TextEncoder().encodeInto(note, room).read)}…`
}

/** The namespace of a malformed object may contain half a character, which cannot be encoded. */
function inNamespace(namespace: string | undefined): string {
  if (namespace === undefined) return ''
  return `namespaces/${encodeURIComponent(Buffer.from(namespace).toString())}/`
}
