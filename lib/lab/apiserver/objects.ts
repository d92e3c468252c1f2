import { aborted, together } from '../../async.js'
import type { Controller } from './controllers/controller.js'
import { deploymentController } from './controllers/deployments.js'
import { endpointSliceController } from './controllers/endpoint-slices.js'
import { endpointsController } from './controllers/endpoints-objects.js'
import { loadBalancerController } from './controllers/load-balancers.js'
import type { PodRuntime } from './controllers/pod-runtime.js'
import { PodController } from './controllers/pods.js'
import { replicaSetController } from './controllers/replica-sets.js'
import { eventExpiry, garbageCollector } from './controllers/removal.js'
import type { KubeObject, NewObject } from './object.js'
import { Registry, type DeleteOptions, type Strategy } from './registry.js'
import { definitionStrategy, serveCustomResources } from './custom-resources.js'
import { defaultResources } from './default-resources.js'
import { collectionOf, ResourceTable, type ResourceKind } from './resources.js'
import type { PortRange } from '../../state/ip.js'
import { ServiceAllocations } from './services/allocation.js'
import { serviceStrategy } from './services/service-strategy.js'
import { badRequest } from './status.js'
import { VersionedStore } from './store.js'
import {
  deploymentStrategy,
  endpointSliceStrategy,
  firstNamespaces,
  namespaceObject,
  namespaceStrategy,
  podStrategy,
  replicaSetStrategy,
  secretStrategy,
} from './strategies.js'

export interface ApiObjectsOptions {
  /** The ranges of ClusterIPs. The family of the first one is the primary family of the cluster. */
  readonly serviceCidrs: readonly string[]
  readonly nodePorts: PortRange
  /** Addresses of load balancers, without the last number; undefined: they get none. */
  readonly loadBalancers: string | undefined
  readonly resources: readonly ResourceKind[]
  readonly now: () => number
  /** Runs the pods; undefined: no controller runs, and objects are only stored. */
  readonly runtime: PodRuntime | undefined
  /** A step of a controller failed; it tries again at the next change. */
  readonly onControllerError: (error: unknown) => void
}

export const objectDefaults: Omit<ApiObjectsOptions, 'runtime'> = {
  serviceCidrs: ['10.96.0.0/16', 'fd00:10:96::/112'],
  nodePorts: { from: 30_000, to: 32_767 },
  loadBalancers: undefined,
  resources: defaultResources,
  now: Date.now,
  onControllerError: () => undefined,
}

interface ObjectRef {
  readonly apiVersion: string
  readonly kind: string
  readonly namespace?: string
  readonly name: string
}

/** The objects of a cluster with the rules of the API and with controllers, for this process. */
export class ApiObjects {
  readonly registry: Registry
  readonly #controllers: readonly Controller[]

  constructor(options: ApiObjectsOptions) {
    // The versions are higher than those of an earlier server. So a client of that server is told to
    // list again, and does not wait for changes that it seems to have already.
    const store = new VersionedStore(options.now())
    const resources = new ResourceTable(options.resources)
    const allocations = new ServiceAllocations(store, {
      cidrs: options.serviceCidrs,
      ports: options.nodePorts,
    })
    const strategies = new Map<string, Strategy>([
      ['services', serviceStrategy(allocations)],
      ['endpointslices.discovery.k8s.io', endpointSliceStrategy],
      ['pods', podStrategy],
      ['deployments.apps', deploymentStrategy],
      ['replicasets.apps', replicaSetStrategy],
      ['secrets', secretStrategy],
      ['namespaces', namespaceStrategy],
      ['customresourcedefinitions.apiextensions.k8s.io', definitionStrategy(resources)],
    ])
    serveCustomResources(store, resources)
    this.registry = new Registry({ store, resources, strategies, now: options.now })
    this.#controllers = controllersOf(this.registry, options)
    for (const name of firstNamespaces) this.put(namespaceObject(name))
    const ranges = serviceCidrObject(options.serviceCidrs, this.registry.timestamp())
    if (resources.byKind(ranges.apiVersion, ranges.kind)) this.put(ranges)
  }

  /** Lets the controllers work until the signal; they may run again after that. */
  async control(signal: AbortSignal): Promise<void> {
    const parts = this.#controllers.map((each) => (ended: AbortSignal) => each.run(ended))
    await together(signal, [aborted, ...parts])
  }

  /** Creates or replaces an object, status included; a missing namespace is made. */
  put(object: NewObject): KubeObject {
    const kind = this.#kindOf(object)
    const namespace = object.metadata['namespace'] ?? 'default'
    if (kind.namespaced && typeof namespace === 'string') {
      const known = this.registry.store.get('namespaces', namespace)
      if (known === undefined) this.put(namespaceObject(namespace))
    }
    return this.registry.put(kind, object)
  }

  get(ref: ObjectRef): KubeObject | undefined {
    const kind = this.#kindOf(ref)
    return this.registry.find(kind, namespaceOf(kind, ref), ref.name)
  }

  list(ref: { readonly apiVersion: string; readonly kind: string }): readonly KubeObject[] {
    return this.registry.store.list(collectionOf(this.#kindOf(ref)))
  }

  /** Removes the object, at once by default; false when there is none. */
  remove(ref: ObjectRef, options: DeleteOptions = { gracePeriodSeconds: 0 }): boolean {
    const kind = this.#kindOf(ref)
    const namespace = namespaceOf(kind, ref)
    if (this.registry.find(kind, namespace, ref.name) === undefined) return false
    this.registry.delete(kind, namespace, ref.name, options)
    return true
  }

  #kindOf(object: { readonly apiVersion: string; readonly kind: string }): ResourceKind {
    const kind = this.registry.resources.byKind(object.apiVersion, object.kind)
    if (kind === undefined) {
      throw badRequest(
        `no kind ${object.kind} in ${object.apiVersion} is served here; add its CustomResourceDefinition first`,
      )
    }
    return kind
  }
}
function controllersOf(registry: Registry, options: ApiObjectsOptions): readonly Controller[] {
  const { runtime, onControllerError, loadBalancers } = options
  if (runtime === undefined) return []
  const deps = { registry, onError: onControllerError }
  return [
    new PodController({ ...deps, runtime }),
    deploymentController(deps),
    replicaSetController(deps),
    endpointSliceController(deps),
    endpointsController(deps),
    garbageCollector(deps),
    eventExpiry(deps),
    ...(loadBalancers === undefined ? [] : [loadBalancerController(deps, loadBalancers)]),
  ]
}

function namespaceOf(kind: ResourceKind, ref: ObjectRef): string | undefined {
  return kind.namespaced ? (ref.namespace ?? 'default') : undefined
}

function serviceCidrObject(cidrs: readonly string[], since: string): NewObject {
  return {
    apiVersion: 'networking.k8s.io/v1',
    kind: 'ServiceCIDR',
    metadata: { name: 'kubernetes' },
    spec: { cidrs },
    status: {
      conditions: [
        {
          type: 'Ready',
          status: 'True',
          reason: '',
          message: 'Kubernetes Service CIDR is ready',
          lastTransitionTime: since,
        },
      ],
    },
  }
}
