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
