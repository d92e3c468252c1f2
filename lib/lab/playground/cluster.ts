import { mkdtempSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { tmpdir } from 'node:os'
import { createApiServer, type ApiServer } from '../apiserver/server.js'
import { buildInNamespaces } from './namespace-test-bed.js'
import { leasesOf, nodesOf, kubernetesService } from './cluster-objects.js'
import { PlaygroundPods } from './playground-pods.js'
import type { TestBed, BuildTestBed, LiveCluster, ModeOptions } from './test-bed.js'
import type { ModeName } from '../../config/config.js'
import type { RunningProxy } from './proxy-process.js'

/**
 * Everything to try a Service: an API server for kubectl, a node with pods, and the daemon on it in
 * a selected mode.
 */
export class Cluster implements LiveCluster {
  readonly api: ApiServer
  readonly testBed: TestBed
  readonly pods: PlaygroundPods
  /** For kubectl on this machine. */
  readonly kubeconfig: string
  readonly #removeFolder: () => void
  readonly #stop = new AbortController()
  readonly #serving: Promise<void>
  #apiOnNode = ''
  #proxy: RunningProxy | undefined

  private constructor(testBed: TestBed, folder: string, removeFolder: () => void) {
    const { layout } = testBed
    this.testBed = testBed
    this.kubeconfig = join(folder, 'kubeconfig')
    this.#removeFolder = removeFolder
    this.pods = new PlaygroundPods(testBed)
    const { serviceCidrs, nodePorts, loadBalancers, api } = layout
    const ranges = { serviceCidrs, nodePorts, loadBalancers }
    this.api = createApiServer({ runtime: this.pods, ...ranges, ...api })
    this.pods.follow(this.api.registry.store)
    const objects = [...nodesOf(layout), ...leasesOf(layout), ...kubernetesService(layout)]
    for (const object of objects) this.api.put(object)
    this.#serving = this.api.run(this.#stop.signal)
  }

  /** Builds a cluster, by default of network namespaces, which need root. */
  static async create(
    name: string,
    buildTestBed: BuildTestBed = buildInNamespaces,
  ): Promise<Cluster> {
    const folder = mkdtempSync(join(tmpdir(), 'kube-proxy-playground-'))
    const removeFolder = () => {
      rmSync(folder, { recursive: true, force: true })
      process.off('exit', removeFolder)
    }
    // A second Ctrl-C ends the process before `close` has run.
    process.on('exit', removeFolder)
    const testBed = await buildTestBed(name, folder).catch((error: unknown) => {
      removeFolder()
      throw error
    })
    const cluster = new Cluster(testBed, folder, removeFolder)
    try {
      await cluster.#connect()
      return cluster
    } catch (error) {
      await cluster.close()
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
    this.#proxy = this.testBed.startProxy(args, onLine)
    return this.#proxy
  }

  async stopProxy(): Promise<void> {
    await this.#proxy?.stop()
    this.#proxy = undefined
  }

  async close(): Promise<void> {
    await this.stopProxy()
    this.#stop.abort()
    // `create` has already reported a server that cannot listen.
    await this.#serving.catch(() => undefined)
    await this.testBed.close()
    this.#removeFolder()
  }

  async #connect(): Promise<void> {
    await Promise.race([this.#serving, this.api.writeKubeconfig(this.kubeconfig)])
    this.#apiOnNode = await this.testBed.openApi(new URL(await this.api.listening()))
  }
}
