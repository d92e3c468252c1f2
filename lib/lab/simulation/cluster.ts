import { ApiObjects, objectDefaults } from '../apiserver/objects.js'
import { countedOn } from '../../page/path-view.js'
import { endOf, type Way } from '../../inspect/explain/packet.js'
import { namespaceLayout, type ClusterLayout } from '../playground/cluster-layout.js'
import { nodesOf } from '../playground/cluster-objects.js'
import { allModes } from '../playground/mode-switch.js'
import { PlaygroundPods } from '../playground/playground-pods.js'
import { SimulatedNetwork } from './network.js'
import { SimulatedProxy } from './proxy.js'
import type { TestBed, LiveCluster, ModeOptions } from '../playground/test-bed.js'
import type { ModeName } from '../../config/config.js'
import type { SimulationDeps } from './choices.js'
import { LivePlayground } from '../playground/live-playground.js'

const layout: ClusterLayout = {
  ...namespaceLayout,
  limits: [
    'This is a simulation in your browser: there is no kernel, and no packet is sent. The objects, the plans of each mode and the way through them are made by the same code as on a node.',
    'What rules leave open is simulated here: chance, turns, affinity and the table of connections. Requests take no time, and the timeline shows what this browser needed.',
  ],
  built: 'two nodes with pods, simulated',
}

interface Started {
  readonly proxy: SimulatedProxy
  readonly stop: AbortController
  readonly running: Promise<void>
}

/** A cluster without any packet: the objects and the plans are real, and the kernel is simulated. */
class SimulatedCluster implements LiveCluster {
  readonly api: ApiObjects
  readonly pods: PlaygroundPods
  readonly testBed: LiveCluster['testBed']
  readonly kubeconfig = ''
  readonly #network: SimulatedNetwork
  #counts = new Counts()
  readonly #deps: SimulationDeps
  #proxy: Started | undefined

  constructor(deps: SimulationDeps) {
    this.#deps = deps
    this.#network = new SimulatedNetwork(deps, (way) => this.#counts.add(way))
    const network = this.#network
    const places: Pick<TestBed, 'layout' | 'serve' | 'stopServing' | 'goDark'> = {
      layout,
      serve: ({ addresses }, server) => network.serve(addresses, server),
      stopServing: ({ addresses }) => network.stopServing(addresses),
      goDark: ({ addresses }, isDark) => network.goDark(addresses, isDark),
    }
    this.pods = new PlaygroundPods(places)
    const { serviceCidrs, nodePorts, loadBalancers } = layout
    const ranges = { serviceCidrs, nodePorts, loadBalancers }
    this.api = new ApiObjects({ ...objectDefaults, ...ranges, runtime: this.pods })
    this.pods.follow(this.api.registry.store)
    for (const node of nodesOf(layout)) this.api.put(node)
    this.testBed = {
      layout,
      flow: (place, request) => Promise.resolve(network.flow(place, request)),
      gauge: {
        ask: () =>
          Promise.resolve({
            isReady: true,
            simulated: this.#counts.view(),
            failing: this.#proxy?.proxy.failing ?? [],
          }),
      },
    }
  }

  /** Lets the controllers and the pods work until the signal. */
  async run(signal: AbortSignal): Promise<void> {
    await this.api.control(signal)
    await this.#stopProxy()
  }

  async useMode(mode: ModeName, { scheduler = 'rr', onLine }: ModeOptions): Promise<void> {
    await this.#stopProxy()
    this.#counts = new Counts()
    const stop = new AbortController()
    const { api } = this
    const network = this.#network
    const say = onLine ?? (() => undefined)
    const deps = { ...this.#deps, api, layout, network, mode, scheduler, say }
    const proxy = new SimulatedProxy(deps)
    this.#proxy = { proxy, stop, running: proxy.run(stop.signal) }
  }

  async #stopProxy(): Promise<void> {
    this.#proxy?.stop.abort()
    await this.#proxy?.running
    this.#proxy = undefined
  }
}

/** How many connections met each rule, and each endpoint. */
class Counts {
  readonly #rules = new Map<string, number>()
  readonly #endpoints = new Map<string, number>()

  add(way: Way): void {
    for (const key of countedOn(way)) add(this.#rules, key)
    if (way.end === 'sent' && way.packet.isDnated) add(this.#endpoints, endOf(way))
  }

  view() {
    return {
      rules: Object.fromEntries(this.#rules),
      endpoints: Object.fromEntries(this.#endpoints),
    }
  }
}

function add(counts: Map<string, number>, key: string): void {
  counts.set(key, (counts.get(key) ?? 0) + 1)
}

/** The playground over a simulated cluster; it runs until the signal. */
export function simulatedPlayground(signal: AbortSignal): LivePlayground {
  const cluster = new SimulatedCluster({ now: () => performance.now(), random: Math.random })
  const playground = new LivePlayground(cluster, {
    modes: allModes,
    where: 'simulated in your browser: nothing is installed, and nothing is sent',
  })
  void cluster.run(signal)
  void playground.run(signal)
  return playground
}
