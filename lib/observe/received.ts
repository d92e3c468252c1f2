import { asObject, asString } from '../state/json.js'
import type { Log } from '../modes/mode.js'
import type { ObjectSink } from '../sources/source.js'

/** A sink that logs each object before it hands it on: what the proxy has heard of, and when. */
export function loggedSink(sink: ObjectSink, log: Log): ObjectSink {
  return {
    upsert: (kind, raw) => {
      const metadata = asObject(asObject(raw)?.['metadata'])
      const text = (key: string) => asString(metadata?.[key])
      const [namespace, name] = [text('namespace'), text('name')]
      const resourceVersion = text('resourceVersion')
      log.debug({ kind, namespace, name, resourceVersion }, 'object received')
      sink.upsert(kind, raw)
    },
    remove: (kind, namespace, name) => {
      log.debug({ kind, namespace, name }, 'object removed')
      sink.remove(kind, namespace, name)
    },
    synced: (kind) => sink.synced(kind),
    failed: (message) => sink.failed(message),
  }
}
