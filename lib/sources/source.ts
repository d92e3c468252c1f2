/** The kinds of objects that the proxy reads. */
export type ObjectKind = 'Service' | 'EndpointSlice' | 'Node' | 'ServiceCIDR'

/** Where objects come from: the Kubernetes API, or a folder of manifests. */
export interface Source {
  /** Delivers objects until the signal, and retries after failures. Resolves when all is closed. */
  run(sink: ObjectSink, signal: AbortSignal): Promise<void>
}

/** Takes raw objects as they are in JSON or YAML. The sink parses them. */
export interface ObjectSink {
  upsert(kind: ObjectKind, raw: unknown): void
  remove(kind: ObjectKind, namespace: string, name: string): void
  /** All objects of this kind that existed at one moment have been delivered (R01). */
  synced(kind: ObjectKind): void
  /** Something failed, and the source will retry it. The message is for the log. */
  failed(message: string): void
  /** The objects at this path, of which a failure was told, are followed again. */
  recovered?(path: string): void
}

/** Is told of each object before the sink gets it. */
export type ObjectWatcher = Pick<ObjectSink, 'upsert' | 'remove'>

/** A sink that tells the watchers, and hands every object on. */
export function watchedSink(sink: ObjectSink, watchers: readonly ObjectWatcher[]): ObjectSink {
  const all = [...watchers, sink]
  return {
    upsert: (kind, raw) => all.forEach((each) => each.upsert(kind, raw)),
    remove: (kind, namespace, name) => all.forEach((each) => each.remove(kind, namespace, name)),
    synced: (kind) => sink.synced(kind),
    failed: (message) => sink.failed(message),
    recovered: (path) => sink.recovered?.(path),
  }
}
