/** Where objects come from: the Kubernetes API, a folder of manifests. */
export type ObjectKind = 'Service' | 'EndpointSlice' | 'Node' | 'ServiceCIDR'

export interface Source {
  /** Delivers objects until the signal; resolves once everything is closed. Retries by itself. */
  run(sink: ObjectSink, signal: AbortSignal): Promise<void>
}

/** Takes raw objects, exactly as JSON or YAML gave them; reading them is the sink's business. */
export interface ObjectSink {
  upsert(kind: ObjectKind, raw: unknown): void
  remove(kind: ObjectKind, namespace: string, name: string): void
  /** Everything of this kind that existed at one moment has been delivered (R01). */
  synced(kind: ObjectKind): void
  /** Something went wrong that the source will retry; for the log and the health answer. */
  failed(message: string): void
}
