import { rmSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { tmpdir } from 'node:os'
import { createApiServer, type ApiServer } from '../apiserver/server.js'
import { layNamespaces } from './namespace-ground.js'
import { PodPlaces } from './pod-places.js'
import type { Ground, LayGround } from './ground.js'
import type { ModeName } from '../../modes/registry.js'
import type { NewObject } from '../apiserver/object.js'
import type { RunningProxy } from './proxy-process.js'
import type { Site } from './site.js'

export interface ModeOptions {
  /** Of ipvs mode. */
  readonly scheduler?: string
  /** Told every line of the daemon's log, which then is JSON with details. */
  readonly onLine?: (line: string) => void
}

/**
 * Everything a Service needs to be tried: an API server that kubectl can talk to, a node with
 * pods, and the daemon on it in a mode of choice.
 */
export class Scene {
  readonly api: ApiServer
  readonly ground: Ground
  readonly pods: PodPlaces
  /** For kubectl on this machine. */
  readonly kubeconfig: string
  readonly #folder: string
  readonly #removeFolder: () => void
  readonly #stop = new AbortController()
  readonly #serving: Promise<void>
  #apiOnNode = ''
  #proxy: RunningProxy | undefined

  private constructor(ground: Ground, folder: string) {
    const { site } = ground
    this.ground = ground
    this.#folder = folder
    this.kubeconfig = join(folder, 'kubeconfig')
    // Whoever insists on leaving (a second Ctrl-C) does not wait for `close`.
    this.#removeFolder = () => rmSync(folder, { recursive: true, force: true })
    process.on('exit', this.#removeFolder)
    this.pods = new PodPlaces(ground)
    const { serviceCidrs, nodePorts, loadBalancers, api } = site
    const ranges = { serviceCidrs, nodePorts, loadBalancers }
    this.api = createApiServer({ runtime: this.pods, ...ranges, ...api })
    this.pods.follow(this.api.registry.store)
    for (const node of nodesOf(site)) this.api.put(node)
    this.#serving = this.api.run(this.#stop.signal)
  }

  /** Builds a scene; of network namespaces, which needs root, unless told otherwise. */
  static async create(name: string, lay: LayGround = layNamespaces): Promise<Scene> {
    const folder = await mkdtemp(join(tmpdir(), 'kube-proxy-playground-'))
    const ground = await lay(name, folder).catch(async (error: unknown) => {
      await rm(folder, { recursive: true })
      throw error
    })
    const scene = new Scene(ground, folder)
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
      ...['--proxy-mode', mode, '--master', this.#apiOnNode],
      ...(scheduler === undefined ? [] : ['--ipvs-scheduler', scheduler]),
      ...(onLine ? ['--logging-format', 'json', '-v', '4'] : []),
    ]
    this.#proxy = this.ground.startProxy(args, onLine)
    return this.#proxy
  }

  async stopProxy(): Promise<void> {
    await this.#proxy?.stop()
    this.#proxy = undefined
  }

  async close(): Promise<void> {
    await this.stopProxy()
    this.#stop.abort()
    // A server that could not listen was reported by then.
    await this.#serving.catch(() => undefined)
    await this.ground.close()
    await rm(this.#folder, { recursive: true, force: true })
    process.off('exit', this.#removeFolder)
  }

  async #connect(): Promise<void> {
    await Promise.race([this.#serving, this.api.writeKubeconfig(this.kubeconfig)])
    this.#apiOnNode = await this.ground.openApi(new URL(await this.api.listening()))
  }
}

function nodesOf(site: Site): readonly NewObject[] {
  return (['node', 'node-2'] as const).map((place, index) => ({
    apiVersion: 'v1',
    kind: 'Node',
    metadata: {
      name: `node-${index + 1}`,
      labels: {
        'kubernetes.io/hostname': `node-${index + 1}`,
        'topology.kubernetes.io/zone': `zone-${index + 1}`,
      },
    },
    spec: { podCIDRs: site.podCidrs[place] },
    // Its main ones, one a family.
    status: {
      addresses: site.addresses[place]
        .slice(0, 2)
        .map((address) => ({ type: 'InternalIP', address })),
    },
  }))
}
