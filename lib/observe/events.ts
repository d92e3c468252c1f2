import { randomBytes } from 'node:crypto'
import { messageOf } from '../errors.js'
import type { Log } from '../modes/mode.js'

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
  /** Creates an object; rejects when that fails. */
  readonly post: (path: string, body: object) => Promise<void>
  readonly nodeName: string
  readonly log: Log
  /** Milliseconds of a clock that nobody can set. */
  readonly now?: () => number
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

/** The API refuses a longer note. */
const longestNote = 1024

/**
 * Writes events.k8s.io/v1 Events (EV06). Each is sent once. Beyond the rate they are only logged, so
 * that they do not add to the load of a cluster in trouble.
 */
export function apiEvents(options: ApiEventsOptions): EventRecorder {
  const { log, nodeName, post, now = () => performance.now(), burst = 25, perMinute = 12 } = options
  let tokens = burst
  let refilledAt = now()
  /** Events are sent one at a time, so that a burst of them opens one connection. */
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
      const body = bodyOf(event, nodeName, new Date())
      // The namespace of a malformed object may contain half a character, which cannot be encoded.
      const inPath = encodeURIComponent(Buffer.from(body.metadata.namespace).toString())
      const path = `/apis/events.k8s.io/v1/namespaces/${inPath}/events`
      waiting++
      last = last
        .then(() => post(path, body))
        .catch((error: unknown) => {
          const fields = { event: event.reason, namespace, name, error: messageOf(error) }
          log.debug(fields, 'Event not sent')
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
    note: event.note.length > longestNote ? `${event.note.slice(0, longestNote - 1)}…` : event.note,
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
