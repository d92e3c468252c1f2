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
  /** The warnings without those about other Services and their EndpointSlices. */
  readonly warningsFor: (namespace: string, name: string) => readonly string[]
  /** The EndpointSlices of a Service, also with endpoints that are not used here. */
  readonly slicesOf: (namespace: string, name: string) => readonly EndpointSliceObject[]
  readonly zone: string | undefined
}

/** Objects go into the sink. The caller calls `taken` once all objects are there. */
export interface Collected {
  readonly sink: TrackerSink
  readonly warnings: () => readonly string[]
  readonly taken: () => NodeStates
}

interface Warning {
  /** The object; undefined where its Service is not known. */
  readonly about: string | undefined
  readonly text: string
}

/** A source tries again until it is stopped, and tells of each try. */
const textsOf = (warnings: readonly Warning[]) => [...new Set(warnings.map(({ text }) => text))]

/** Collects objects for commands that look once and do not follow changes. */
export function collect(
  settings: TrackerSettings,
  addresses: readonly string[],
  failing: readonly EndpointFailure[] = [],
): Collected {
  const warnings: Warning[] = []
  const tracker = new Tracker(settings)
  tracker.setLocalAddresses(addresses)
  for (const { port, endpoint, reason } of failing) {
    tracker.setEndpointHealth(port, endpoint, reason)
  }
  const sink = new TrackerSink(tracker, settings.nodeName, {
    changed: () => undefined,
    nodeChanged: () => undefined,
    malformed: (kind, { namespace, name }, reason) => {
      const object = `${kind} ${namespace}/${name}`
      // Nobody knows the Service of an EndpointSlice that cannot be read.
      const about = kind === 'Service' ? object : undefined
      warnings.push({ about, text: `${object} is skipped: ${reason}` })
    },
    warned: (kind, { namespace, name }, warning) => {
      const object = `${kind} ${namespace}/${name}`
      const isKnown = kind === 'Service' || kind === 'EndpointSlice'
      warnings.push({ about: isKnown ? object : undefined, text: `${object}: ${warning}` })
    },
    failed: (text) => warnings.push({ about: undefined, text }),
  })
  const slicesOf = (namespace: string, name: string) => tracker.endpointSlices(namespace, name)
  const warningsFor = (namespace: string, name: string) => {
    const slices = slicesOf(namespace, name).map(
      (slice) => `EndpointSlice ${namespace}/${slice.name}`,
    )
    const its = new Set([`Service ${namespace}/${name}`, ...slices])
    return textsOf(warnings.filter(({ about }) => about === undefined || its.has(about)))
  }
  const taken = () => {
    const update = tracker.take()
    for (const { service, warning } of update.warnings) {
      const object = `Service ${service.namespace}/${service.name}`
      warnings.push({ about: object, text: `${object}: ${warning}` })
    }
    const told = { warnings: textsOf(warnings), warningsFor }
    return { states: update.states, ...told, slicesOf, zone: tracker.zone }
  }
  return { sink, warnings: () => textsOf(warnings), taken }
}
