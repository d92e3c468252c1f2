import { rmSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import type { Server } from 'node:net'
import { join } from 'node:path'
import { tmpdir } from 'node:os'
import { createApiServer, type ApiServer } from '../apiserver/server.js'
import { openBridge, type Bridge } from '../world/bridge.js'
import { forward } from '../world/forward.js'
import { addressOf, places, ranges } from '../world/topology.js'
import { createWorld, type World } from '../world/world.js'
import { PodPlaces } from './pod-places.js'
import { runProxy, type RunningProxy } from './proxy-process.js'
import { followLoadBalancers } from './load-balancers.js'
import { NodeGauge } from './node-gauge.js'
import type { ModeName } from '../modes/mode.js'

export interface ModeOptions {
  /** Of ipvs mode. */
  readonly scheduler?: string
  /** Told every line of the daemon's log, which then is JSON with details. */
  readonly onLine?: (line: string) => void
}

/** Where the daemon on the node finds the API server. */
const apiPortOnNode = 6443

/**
 * Everything a Service needs to be tried: an API server that kubectl can talk to, a node with
 * pods made of network namespaces, and the daemon on it in a mode of choice.
 */
export class Scene {
  readonly api: ApiServer
  readonly world: World
  readonly pods: PodPlaces
  /** For kubectl on this machine. */
  readonly kubeconfig: string
  /** Reads numbers on the node. */
  readonly gauge: NodeGauge
  readonly #folder: string
  readonly #stopLoadBalancers: () => void
  readonly #removeFolder: () => void
  readonly #stop = new AbortController()
  readonly #serving: Promise<void>
  #door: Server | undefined
  #bridge: Bridge | undefined
  #proxy: RunningProxy | undefined

  private constructor(world: World, folder: string) {
    this.world = world
    this.#folder = folder
    this.kubeconfig = join(folder, 'kubeconfig')
    // Whoever insists on leaving (a second Ctrl-C) does not wait for `close`.
    this.#removeFolder = () => rmSync(folder, { recursive: true, force: true })
    process.on('exit', this.#removeFolder)
    this.pods = new PodPlaces(world)
    this.api = createApiServer({ runtime: this.pods })
    this.pods.follow(this.api.registry.store)
    this.gauge = new NodeGauge(world.namespaces.node)
    this.#stopLoadBalancers = followLoadBalancers(this.api.registry)
    for (const node of nodes) this.api.put(node)
    this.#serving = this.api.run(this.#stop.signal)
  }

  /** Builds a scene. Needs root. */
  static async create(name: string): Promise<Scene> {
    const folder = await mkdtemp(join(tmpdir(), 'kube-proxy-playground-'))
    const world = await createWorld({ name }).catch(async (error: unknown) => {
      await rm(folder, { recursive: true })
      throw error
    })
    const scene = new Scene(world, folder)
    try {
      await scene.#connect()
      return scene
    } catch (error) {
      await scene.close()
      throw error
    }
  }

  /** Runs the daemon in this mode from now on; a running one ends first. */
  async useMode(mode: ModeName, options: ModeOptions = {}): Promise<RunningProxy> {
    await this.stopProxy()
    const { scheduler, onLine } = options
    const args = [
      ...['--proxy-mode', mode, '--master', `http://127.0.0.1:${apiPortOnNode}`],
      ...(scheduler === undefined ? [] : ['--ipvs-scheduler', scheduler]),
      ...(onLine ? ['--logging-format', 'json', '-v', '4'] : []),
    ]
    this.#proxy = runProxy(this.world, args, onLine)
    return this.#proxy
  }

  async stopProxy(): Promise<void> {
    await this.#proxy?.stop()
    this.#proxy = undefined
  }

  async close(): Promise<void> {
    await this.stopProxy()
    this.#stopLoadBalancers()
    this.#stop.abort()
    await Promise.all([this.#bridge?.close(), this.gauge.close()])
    this.#door?.close()
    await this.#serving
    await this.world.close()
    await rm(this.#folder, { recursive: true, force: true })
    process.off('exit', this.#removeFolder)
  }

  /** The API server lives outside of the namespaces; a socket file leads from the node to it. */
  async #connect(): Promise<void> {
    await Promise.race([this.#serving, this.api.writeKubeconfig(this.kubeconfig)])
    // Every place serves from the start; here only pods shall.
    await Promise.all(places.map((place) => this.world.agent(place).stopServing()))
    const api = new URL(await this.api.listening())
    const path = join(this.#folder, 'api.sock')
    this.#door = await forward({ path }, { host: api.hostname, port: Number(api.port) })
    this.#bridge = await openBridge({
      namespace: this.world.namespaces.node,
      from: { port: apiPortOnNode },
      to: { path },
    })
  }
}

const nodes = (['node', 'node-2'] as const).map((place, index) => ({
  apiVersion: 'v1',
  kind: 'Node',
  metadata: {
    name: `node-${index + 1}`,
    labels: {
      'kubernetes.io/hostname': `node-${index + 1}`,
      'topology.kubernetes.io/zone': `zone-${index + 1}`,
    },
  },
  spec: { podCIDRs: Object.values(index === 0 ? ranges.pods : ranges.pods2) },
  status: {
    addresses: [
      { type: 'InternalIP', address: addressOf(place, 'IPv4') },
      { type: 'InternalIP', address: addressOf(place, 'IPv6') },
    ],
  },
}))
