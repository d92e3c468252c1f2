import { Tracker, type TrackerSettings } from '../state/tracker.js'
import { TrackerSink } from './tracker-sink.js'
import type { EndpointFailure } from '../state/endpoint-health.js'
import type { DesiredState } from '../state/desired-state.js'
import type { EndpointSliceObject } from '../state/objects.js'

/** The states that a node should serve, read once. */
export interface NodeStates {
  /** One for each IP family asked for. */
  readonly states: readonly DesiredState[]
  /** Texts about objects, or parts of them, that were left out, and why. */
  readonly warnings: readonly string[]
  /** The EndpointSlices of a Service, also with endpoints that are not used here. */
  readonly slicesOf: (namespace: string, name: string) => readonly EndpointSliceObject[]
  readonly zone: string | undefined
}

/** Objects go into the sink. The caller calls `taken` once all objects are there. */
export interface Collected {
  readonly sink: TrackerSink
  readonly warnings: readonly string[]
  readonly taken: () => NodeStates
}

/** Collects objects for commands that look once and do not follow changes. */
export function collect(
  settings: TrackerSettings,
  addresses: readonly string[],
  failing: readonly EndpointFailure[] = [],
): Collected {
  const warnings: string[] = []
  const tracker = new Tracker(settings)
  tracker.setLocalAddresses(addresses)
  for (const { port, endpoint, reason } of failing) {
    tracker.setEndpointHealth(port, endpoint, reason)
  }
  const sink = new TrackerSink(tracker, settings.nodeName, {
    changed: () => undefined,
    nodeChanged: () => undefined,
    malformed: (kind, { namespace, name }, reason) => {
      warnings.push(`${kind} ${namespace}/${name} is skipped: ${reason}`)
    },
    warned: (kind, { namespace, name }, warning) => {
      warnings.push(`${kind} ${namespace}/${name}: ${warning}`)
    },
    failed: (message) => warnings.push(message),
  })
  const taken = () => {
    const update = tracker.take()
    for (const { service, warning } of update.warnings) {
      warnings.push(`Service ${service.namespace}/${service.name}: ${warning}`)
    }
    return {
      states: update.states,
      warnings,
      slicesOf: (namespace: string, name: string) => tracker.endpointSlices(namespace, name),
      zone: tracker.zone,
    }
  }
  return { sink, warnings, taken }
}
