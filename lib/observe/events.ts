import { randomBytes } from 'node:crypto'
import { messageOf } from '../errors.js'
import type { Log } from '../modes/mode.js'

/** What an Event is about. */
export interface EventTarget {
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

/** Tells the operator through the objects concerned. Never fails, never waits. */
export interface EventRecorder {
  record(event: ProxyEvent): void
}

/** Where there is no API server. Whoever records an event has logged the matter as well. */
export function logEvents(log: Log): EventRecorder {
  return {
    record: ({ type, reason, action, note, regarding: { kind, namespace, name } }) => {
      log.debug({ type, reason, action, kind, namespace, name }, `event: ${note}`)
    },
  }
}

export interface ApiEventsOptions {
  /** Creates an object; rejects when that fails. */
  readonly post: (path: string, body: object) => Promise<void>
  readonly nodeName: string
  readonly log: Log
  readonly now?: () => number
  /** Events at once, and how many come back each minute: news, not a log. */
  readonly burst?: number
  readonly perMinute?: number
}

const apiVersions: Readonly<Record<EventTarget['kind'], string>> = {
  Node: 'v1',
  Service: 'v1',
  EndpointSlice: 'discovery.k8s.io/v1',
  ServiceCIDR: 'networking.k8s.io/v1',
}

/** The API refuses longer ones. */
const longestNote = 1024

/**
 * Writes events.k8s.io/v1 Events (EV06). Best effort: one try each, and beyond the rate they are
 * only logged, so that a cluster in trouble is not troubled further by us.
 */
export function apiEvents(options: ApiEventsOptions): EventRecorder {
  const { log, nodeName, post, now = Date.now, burst = 25, perMinute = 12 } = options
  let tokens = burst
  let refilledAt = now()
  /** One at a time: a burst of them should not become a burst of connections. */
  let last = Promise.resolve()
  let waiting = 0
  const allows = () => {
    const time = now()
    tokens = Math.min(burst, tokens + ((time - refilledAt) / 60_000) * perMinute)
    refilledAt = time
    if (tokens < 1 || waiting >= burst) return false
    tokens--
    return true
  }
  return {
    record(event) {
      const { namespace, name } = event.regarding
      if (!allows()) {
        log.debug({ event: event.reason, namespace, name }, 'too many events, this one is not sent')
        return
      }
      const body = bodyOf(event, nodeName, new Date(now()))
      // Of a malformed object nobody has checked the namespace; half a character cannot be encoded.
      const inPath = encodeURIComponent(Buffer.from(body.metadata.namespace).toString())
      const path = `/apis/events.k8s.io/v1/namespaces/${inPath}/events`
      waiting++
      last = last
        .then(() => post(path, body))
        .catch((error: unknown) => {
          const fields = { event: event.reason, namespace, name, error: messageOf(error) }
          log.debug(fields, 'event not sent')
        })
        .finally(() => {
          waiting--
        })
    },
  }
}

function bodyOf(event: ProxyEvent, nodeName: string, time: Date) {
  const { kind, namespace, name } = event.regarding
  return {
    apiVersion: 'events.k8s.io/v1',
    kind: 'Event',
    metadata: {
      // Unique without asking, and it says what it is about, as kubectl's list shows it.
      name: `${name.slice(0, 200)}.${randomBytes(8).toString('hex')}`,
      // What has no namespace keeps its events in the default one.
      namespace: namespace === '' ? 'default' : namespace,
    },
    // Microseconds, which the API insists on.
    eventTime: time.toISOString().replace('Z', '000Z'),
    reportingController: 'kube-proxy',
    reportingInstance: `kube-proxy-${nodeName}`.slice(0, 128),
    action: event.action,
    reason: event.reason,
    type: event.type,
    note: event.note.length > longestNote ? `${event.note.slice(0, longestNote - 1)}…` : event.note,
    // A Node is referred to by its name as its uid too: so kubelet does, and so kubectl looks it up.
    regarding: {
      apiVersion: apiVersions[kind],
      kind,
      name,
      ...(namespace === '' ? {} : { namespace }),
      ...(kind === 'Node' ? { uid: name } : {}),
    },
  }
}
