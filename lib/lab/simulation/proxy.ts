import { aborted, pause } from '../../async.js'
import { configOf, stateOf } from '../playground/rules-view.js'
import { changeSeen, syncMeasured } from '../playground/timeline.js'
import type { ApiObjects } from '../apiserver/objects.js'
import type { KubeObject } from '../apiserver/object.js'
import type { ModeName } from '../../config/config.js'
import { HealthChecks } from '../../sources/health/health-checks.js'
import { keyOf, type ServicePortName } from '../../state/names.js'
import { SimulatedChecker } from './checks.js'
import type { EndpointFailure } from '../../state/endpoint-health.js'
import type { SimulatedNetwork } from './network.js'
import type { SimulationDeps } from './choices.js'
import type { StoreEvent } from '../apiserver/store.js'
import type { ClusterLayout } from '../playground/cluster-layout.js'

interface SimulatedProxyDeps extends SimulationDeps {
  readonly api: ApiObjects
  readonly layout: ClusterLayout
  readonly network: SimulatedNetwork
  readonly mode: ModeName
  readonly scheduler: string
  /** Gets its log, in the words of the daemon. */
  readonly say: (line: string) => void
}

const kinds = [
  ['Service', 'services'],
  ['EndpointSlice', 'endpointslices.discovery.k8s.io'],
] as const

/** Changes that come close together are written by one sync, as in the daemon. */
const settleMs = 20

/** The daemon of a simulated node: it plans as the product does, and writes into the simulation. */
export class SimulatedProxy {
  readonly #deps: SimulatedProxyDeps
  readonly #checks: HealthChecks
  readonly #failing = new Map<string, EndpointFailure>()
  #changed = new AbortController()

  constructor(deps: SimulatedProxyDeps) {
    this.#deps = deps
    const { now, random, network } = deps
    const probe = network.check.bind(network)
    this.#checks = new HealthChecks({
      tracker: { setEndpointHealth: (...failure) => this.#setHealth(...failure) },
      checker: ({ reported }) => new SimulatedChecker({ now, random, probe, reported }),
      requestSync: () => this.#changed.abort(),
      listener: {
        ...{ followed: () => undefined, turned: () => undefined, counted: () => undefined },
        threadEnded: () => undefined,
      },
    })
  }

  /** The endpoints that fail their health check. */
  get failing(): readonly EndpointFailure[] {
    return [...this.#failing.values()]
  }

  async run(signal: AbortSignal): Promise<void> {
    const { api, layout, network, mode, scheduler } = this.#deps
    const { store } = api.registry
    network.node.start(mode, configOf(layout, scheduler))
    this.#say({ msg: 'Starting' })
    for (const [kind, collection] of kinds) {
      for (const object of store.list(collection)) this.#received(kind, object)
    }
    const ends = kinds.map(([kind, collection]) =>
      store.subscribe(collection, (event) => this.#heard(kind, event)),
    )
    const stop = new AbortController()
    const checking = this.#checks.run(stop.signal)
    try {
      while (!signal.aborted) {
        this.#changed = new AbortController()
        this.#sync()
        await aborted(AbortSignal.any([signal, this.#changed.signal]))
        await pause(settleMs, signal)
      }
    } finally {
      for (const end of ends) end()
      stop.abort()
      await checking
    }
  }

  #sync(): void {
    const { api, layout, network, mode } = this.#deps
    this.#say({ msg: 'sync begins' })
    const began = performance.now()
    const state = stateOf(api.registry, mode, layout, this.failing)
    if (state) network.node.write(state)
    this.#checks.started({ states: state ? [state] : [] })
    const planMs = performance.now() - began
    this.#say({ msg: syncMeasured, family: 'IPv4', planMs, applyMs: 0 })
  }

  #setHealth(port: ServicePortName, endpoint: string, reason: string | undefined): void {
    const key = `${keyOf(port)} ${endpoint}`
    if (reason === undefined) this.#failing.delete(key)
    else this.#failing.set(key, { port, endpoint, reason })
  }

  #heard(kind: string, { type, object }: StoreEvent): void {
    if (type === 'DELETED') this.#say({ msg: 'object removed', kind, ...nameOf(object) })
    else this.#received(kind, object)
    this.#say({ msg: changeSeen })
    this.#changed.abort()
  }

  #received(kind: string, object: KubeObject): void {
    const { resourceVersion } = object.metadata
    this.#say({ msg: 'object received', kind, ...nameOf(object), resourceVersion })
  }

  #say(fields: Readonly<Record<string, unknown>>): void {
    const time = new Date(performance.timeOrigin + performance.now()).toISOString()
    this.#deps.say(JSON.stringify({ time, ...fields }))
  }
}

function nameOf({ metadata: { namespace, name } }: KubeObject) {
  return { namespace, name }
}
