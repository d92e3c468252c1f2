import { aborted } from '../../async.js'
import { createServer, type Server } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import type { Certificate } from './certificate.js'
import type { Controller } from './controllers/controller.js'
import { deploymentController } from './controllers/deployments.js'
import { endpointSliceController } from './controllers/endpoint-slices.js'
import { endpointsController } from './controllers/endpoints-objects.js'
import { loadBalancerController } from './controllers/load-balancers.js'
import { fakeRuntime, type PodRuntime } from './controllers/pod-runtime.js'
import { podController } from './controllers/pods.js'
import { eventExpiry, garbageCollector } from './controllers/removal.js'
import { Faults } from './faults.js'
import { writeKubeconfig } from './kubeconfig.js'
import { close, listen } from './listening.js'
import type { KubeObject, NewObject } from './object.js'
import { Registry, type DeleteOptions, type Strategy } from './registry.js'
import { definitionStrategy, serveCustomResources } from './custom-resources.js'
import { defaultResources } from './default-resources.js'
import { collectionOf, ResourceTable, type ResourceKind } from './resources.js'
import { serve, type RouteDeps } from './routes.js'
import { ServiceAllocations, type PortRange } from './services/allocation.js'
import { serviceStrategy } from './services/service-strategy.js'
import { badRequest } from './status.js'
import { VersionedStore, type StoreListener } from './store.js'
import { EventTexts } from './watching.js'
import {
  deploymentStrategy,
  endpointSliceStrategy,
  firstNamespaces,
  namespaceObject,
  namespaceStrategy,
  podStrategy,
  secretStrategy,
} from './strategies.js'

export interface ApiServerOptions {
  readonly host: string
  /** 0 lets the system choose; a later run listens on the same port again. */
  readonly port: number
  /** PEM; plain HTTP when absent. */
  readonly tls: Certificate | undefined
  /** The ranges of ClusterIPs. The family of the first one is the primary family of the cluster. */
  readonly serviceCidrs: readonly string[]
  readonly nodePorts: PortRange
  /** Addresses of load balancers, without the last number; undefined: they get none. */
  readonly loadBalancers: string | undefined
  /** Which bearer tokens are accepted; undefined accepts every client. */
  readonly accepts: ((token: string) => boolean) | undefined
  readonly resources: readonly ResourceKind[]
  /** Changes kept for each kind, from which watches resume. */
  readonly historyLimit: number
  readonly bookmarkEveryMs: number
  readonly now: () => number
  /** Runs the pods; undefined: no controller runs, and objects are only stored. */
  readonly runtime: PodRuntime | undefined
  /** A step of a controller failed; it tries again at the next change. */
  readonly onControllerError: (error: unknown) => void
}

export interface ObjectRef {
  readonly apiVersion: string
  readonly kind: string
  readonly namespace?: string
  readonly name: string
}

const defaults: Omit<ApiServerOptions, 'runtime'> = {
  host: '127.0.0.1',
  port: 0,
  tls: undefined,
  serviceCidrs: ['10.96.0.0/16', 'fd00:10:96::/112'],
  nodePorts: { from: 30_000, to: 32_767 },
  loadBalancers: undefined,
  accepts: undefined,
  resources: defaultResources,
  historyLimit: 4000,
  bookmarkEveryMs: 60_000,
  now: Date.now,
  onControllerError: () => undefined,
}

export function createApiServer(options: Partial<ApiServerOptions> = {}): ApiServer {
  const runtime = fakeRuntime({
    podCidrs: ['10.244.0.0/16', 'fd00:10:244::/64'],
    readyAfterMs: 50,
    endAfterMs: 50,
  })
  return new ApiServer({ ...defaults, runtime, ...options })
}

/** A Kubernetes API server in memory: over HTTP for clients, by method calls for this process. */
export class ApiServer {
  readonly registry: Registry
  readonly faults: Faults
  readonly #options: ApiServerOptions
  readonly #store: VersionedStore
  readonly #controllers: readonly Controller[]
  readonly #waiting: ((url: string) => void)[] = []
  #port: number
  #url: string | undefined

  constructor(options: ApiServerOptions) {
    this.#options = options
    this.#port = options.port
    this.#store = new VersionedStore({
      historyLimit: options.historyLimit,
      // The versions are higher than those of an earlier server. So a client of that server is told
      // to list again, and does not wait for changes that it seems to have already.
      firstVersion: options.now(),
    })
    const resources = new ResourceTable(options.resources)
    const allocations = new ServiceAllocations(this.#store, {
      cidrs: options.serviceCidrs,
      ports: options.nodePorts,
    })
    const strategies = new Map<string, Strategy>([
      ['services', serviceStrategy(allocations)],
      ['endpointslices.discovery.k8s.io', endpointSliceStrategy],
      ['pods', podStrategy],
      ['deployments.apps', deploymentStrategy],
      ['secrets', secretStrategy],
      ['namespaces', namespaceStrategy],
      ['customresourcedefinitions.apiextensions.k8s.io', definitionStrategy(resources)],
    ])
    serveCustomResources(this.#store, resources)
    this.registry = new Registry({ store: this.#store, resources, strategies, now: options.now })
    this.faults = new Faults(this.#store)
    this.#controllers = controllersOf(this.registry, options)
    for (const name of firstNamespaces) this.put(namespaceObject(name))
    const ranges = serviceCidrObject(options.serviceCidrs, this.registry.timestamp())
    if (resources.byKind(ranges.apiVersion, ranges.kind)) this.put(ranges)
  }

  /** Where clients reach the server, once it listens. */
  async listening(): Promise<string> {
    if (this.#url !== undefined) return this.#url
    return new Promise((resolve) => this.#waiting.push(resolve))
  }

  /** Serves until the signal; the objects stay, and it may run again after that. */
  async run(signal: AbortSignal): Promise<void> {
    if (signal.aborted) return
    const server = this.#createServer()
    // Watches are idle for as long as nothing changes.
    server.requestTimeout = 0
    server.keepAliveTimeout = 90_000
    try {
      await listen(server, this.#options.host, this.#port)
      this.#opened(server)
      await Promise.all([
        aborted(signal),
        ...this.#controllers.map((controller) => controller.run(signal)),
      ])
    } finally {
      this.#url = undefined
      await close(server)
    }
  }

  /** Creates or replaces an object, status included; a missing namespace is made. */
  put(object: NewObject): KubeObject {
    const kind = this.#kindOf(object)
    const namespace = object.metadata['namespace'] ?? 'default'
    if (kind.namespaced && typeof namespace === 'string') {
      const known = this.#store.get('namespaces', namespace)
      if (known === undefined) this.put(namespaceObject(namespace))
    }
    return this.registry.put(kind, object)
  }

  get(ref: ObjectRef): KubeObject | undefined {
    const kind = this.#kindOf(ref)
    return this.registry.find(kind, namespaceOf(kind, ref), ref.name)
  }

  list(ref: { readonly apiVersion: string; readonly kind: string }): readonly KubeObject[] {
    return this.#store.list(collectionOf(this.#kindOf(ref)))
  }

  /** Removes the object, at once by default; false when there is none. */
  remove(ref: ObjectRef, options: DeleteOptions = { gracePeriodSeconds: 0 }): boolean {
    const kind = this.#kindOf(ref)
    const namespace = namespaceOf(kind, ref)
    if (this.registry.find(kind, namespace, ref.name) === undefined) return false
    this.registry.delete(kind, namespace, ref.name, options)
    return true
  }

  /** Calls back for every later change of a kind; the listener must not write by itself. */
  subscribe(
    ref: { readonly apiVersion: string; readonly kind: string },
    listener: StoreListener,
  ): () => void {
    return this.#store.subscribe(collectionOf(this.#kindOf(ref)), listener)
  }

  /** Waits until the server answers, then writes how to reach it. */
  async writeKubeconfig(path: string, token?: string): Promise<void> {
    const url = await this.listening()
    const { tls } = this.#options
    await writeKubeconfig(path, {
      url,
      ...(tls === undefined ? {} : { certificateAuthority: tls.certificate }),
      ...(token === undefined ? {} : { token }),
    })
  }

  #createServer(): Server {
    const deps: RouteDeps = {
      host: this.#options.host,
      registry: this.registry,
      faults: this.faults,
      texts: new EventTexts(),
      bookmarkEveryMs: this.#options.bookmarkEveryMs,
      accepts: this.#options.accepts,
    }
    const { tls } = this.#options
    if (tls === undefined) {
      return createServer((request, response) => void serve(request, response, deps))
    }
    return createTlsServer(
      { cert: tls.certificate, key: tls.key },
      (request, response) => void serve(request, response, deps),
    )
  }

  #opened(server: Server): void {
    const address = server.address()
    if (typeof address === 'object' && address !== null) this.#port = address.port
    const { host, tls } = this.#options
    const shown = host.includes(':') ? `[${host}]` : host
    const url = `${tls === undefined ? 'http' : 'https'}://${shown}:${this.#port}`
    this.#url = url
    for (const resolve of this.#waiting.splice(0)) resolve(url)
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

function controllersOf(registry: Registry, options: ApiServerOptions): readonly Controller[] {
  const { runtime, onControllerError, loadBalancers } = options
  if (runtime === undefined) return []
  const deps = { registry, onError: onControllerError }
  return [
    podController({ ...deps, runtime }),
    deploymentController(deps),
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
