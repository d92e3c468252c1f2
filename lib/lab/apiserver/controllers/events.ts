import type { KubeObject } from '../object.js'
import type { Registry } from '../registry.js'
import type { PodEvent } from './pod-runtime.js'

/** Writes a warning about an object, where `kubectl describe` and `kubectl get events` find it. */
export function warn(registry: Registry, about: KubeObject, { reason, message }: PodEvent): void {
  const kind = registry.resources.byKind('v1', 'Event')
  if (!kind) return
  const { apiVersion, kind: ofKind, metadata } = about
  const { name, namespace = 'default', uid = '' } = metadata
  const now = registry.timestamp()
  registry.create(kind, {
    apiVersion: 'v1',
    kind: 'Event',
    metadata: { generateName: `${name}.`, namespace },
    involvedObject: { apiVersion, kind: ofKind, name, namespace, uid },
    type: 'Warning',
    reason,
    message,
    count: 1,
    source: { component: 'playground' },
    firstTimestamp: now,
    lastTimestamp: now,
  })
}
