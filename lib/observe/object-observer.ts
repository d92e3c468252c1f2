import { asObject, asString } from '../state/json.js'
import type { Identity, NodeObject } from '../state/objects.js'
import type { Log, Meter } from '../modes/mode.js'
import type { ObjectKind, ObjectWatcher } from '../sources/source.js'
import type { Observation } from './observation.js'

interface ObjectObserverOptions {
  readonly log: Log
  readonly meter: Meter
  readonly observation: Pick<Observation, 'malformed' | 'warned' | 'complaints' | 'nodeChanged'>
  readonly now: () => number
}

/**
 * One failure is logged once in this time: without an API server, four lists fail every few
 * seconds.
 */
const repeatedFailureMs = 30_000

/** Turns what happens to objects on their way to the tracker into log lines, metrics and events. */
export function objectObserver({ log, meter, observation, now }: ObjectObserverOptions) {
  const isNew = repeatFilter({ forMs: repeatedFailureMs, now })
  return {
    malformed: (kind: ObjectKind, identity: Identity, reason: string) => {
      meter.count('malformed_objects_total', { kind })
      const isNews = observation.malformed(kind, identity, reason)
      const text = 'object makes no sense and is skipped'
      log[isNews ? 'warn' : 'debug']({ kind, ...identity, reason }, text)
    },
    warned: (kind: ObjectKind, { namespace, name }: Identity, warning: string) => {
      // An object that changes often brings the same warning each time.
      const isNews = observation.warned(kind, { namespace, name }, warning)
      const text = 'part of an object has no effect'
      log[isNews ? 'warn' : 'debug']({ kind, namespace, name, warning }, text)
    },
    complaints: (kind: ObjectKind, identity: Identity, warnings: readonly string[]) =>
      observation.complaints(kind, identity, warnings),
    nodeChanged: (node: NodeObject | undefined) => observation.nodeChanged(node),
    failed: (message: string) => {
      const text = 'source of objects failed, will retry'
      log[isNew(message) ? 'warn' : 'debug']({ reason: message }, text)
    },
    recovered: (path: string) => {
      const text = 'source of objects works again'
      log[isNew(`${text} ${path}`) ? 'info' : 'debug']({ path }, text)
    },
  }
}

/** Tells whether a text is new: not given within the last `forMs`. */
export function repeatFilter(options: {
  readonly forMs: number
  readonly now: () => number
}): (text: string) => boolean {
  const givenAt = new Map<string, number>()
  return (text) => {
    const now = options.now()
    for (const [given, at] of givenAt) if (now - at >= options.forMs) givenAt.delete(given)
    if (givenAt.has(text)) return false
    givenAt.set(text, now)
    return true
  }
}

/** Logs each object, so that the log shows when the proxy got it. */
export function objectLog(log: Log): ObjectWatcher {
  return {
    upsert: (kind, raw) => {
      const metadata = asObject(asObject(raw)?.['metadata'])
      const text = (key: string) => asString(metadata?.[key])
      const [namespace, name] = [text('namespace'), text('name')]
      const resourceVersion = text('resourceVersion')
      log.debug({ kind, namespace, name, resourceVersion }, 'object received')
    },
    remove: (kind, namespace, name) => log.debug({ kind, namespace, name }, 'object removed'),
  }
}
