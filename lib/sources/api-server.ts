import { pause } from '../async.js'
import { defaultTiming, type ListWatchTiming } from './list-watch-timing.js'
import { ListWatch } from './list-watch.js'
import type { Selection } from './object-requests.js'
import type { ApiClient } from './api-client.js'
import type { ObjectSink, Source } from './source.js'

interface ApiServerSourceOptions {
  readonly client: ApiClient
  /** Only this Node is followed (R10). */
  readonly nodeName: string
  /** Whether to ask for all objects at the beginning of a watch, before lists are tried. */
  readonly isStreamed?: boolean
  readonly timing?: Partial<ListWatchTiming>
}

/** Follows the objects that the proxy needs from a Kubernetes API server. */
export function apiServerSource(options: ApiServerSourceOptions): Source {
  const deps = {
    client: options.client,
    isStreamed: options.isStreamed ?? false,
    timing: { ...defaultTiming, ...options.timing },
    random: Math.random,
    sleep: pause,
    now: () => performance.now(),
  }
  return {
    async run(sink: ObjectSink, signal: AbortSignal): Promise<void> {
      const selections = selectionsFor(options.nodeName)
      await Promise.all(
        selections.map((selection) => new ListWatch(selection, deps, sink).run(signal)),
      )
    },
  }
}

/** The objects that the proxy of a node reads. */
export function selectionsFor(nodeName: string): readonly Selection[] {
  return [
    {
      kind: 'Service',
      path: '/api/v1/services',
      // S03: a Service with this label belongs to another proxy. S04: headless ones are left out.
      labelSelector: '!service.kubernetes.io/service-proxy-name',
      fieldSelector: 'spec.clusterIP!=None',
    },
    {
      kind: 'EndpointSlice',
      path: '/apis/discovery.k8s.io/v1/endpointslices',
      // S05: slices of headless Services are left out.
      labelSelector: '!service.kubernetes.io/headless',
    },
    {
      kind: 'Node',
      path: '/api/v1/nodes',
      fieldSelector: `metadata.name=${nodeName}`,
      isQuiet: true,
    },
    {
      kind: 'ServiceCIDR',
      path: '/apis/networking.k8s.io/v1/servicecidrs',
      isOptional: true,
      isQuiet: true,
    },
  ]
}
