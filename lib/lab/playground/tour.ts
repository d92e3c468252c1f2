import { aborted } from '../../async.js'
import { textAt } from '../apiserver/json.js'
import { Cluster } from './cluster.js'
import { serviceOverWeb, webDeployment } from './cluster-objects.js'
import { daemonPatienceMs, untilTrue } from './until-true.js'
import type { KubeObject } from '../apiserver/object.js'
import type { BuildTestBed } from './test-bed.js'
import type { ModeName } from '../../config/config.js'
import type { RunningProxy } from './proxy-process.js'

interface TourOptions {
  /** Modes to show, one after the other; each was probed and can run here. */
  readonly modes: readonly ModeName[]
  readonly print: (line: string) => void
  /** Network namespaces when absent. */
  readonly buildTestBed?: BuildTestBed
}

const calls = 6
const replicas = 2

/**
 * Shows Services at work on this machine alone: an API server, a small cluster of network
 * namespaces, the daemon in it, and requests through a ClusterIP. Resolves to whether all
 * pods answered as they should, which is false when the signal came before.
 */
export async function runTour(options: TourOptions, signal: AbortSignal): Promise<boolean> {
  const { print, buildTestBed } = options
  const cluster = await Cluster.create('tour', buildTestBed)
  try {
    print(`Built ${cluster.testBed.layout.built}, and an API server.`)
    const service = createWeb(cluster)
    const clusterIp = textAt(service, 'spec', 'clusterIP')
    print(
      `   Deployment web with ${replicas} pods, Service web at ${clusterIp}:${cluster.testBed.layout.ports.web}`,
    )
    const guide = new Guide({ cluster, clusterIp, print, signal })
    let isFine = true
    for (const mode of options.modes) {
      signal.throwIfAborted()
      isFine = (await guide.show(mode)) && isFine
    }
    return isFine
  } catch (error) {
    if (!signal.aborted) throw error
    return false
  } finally {
    await cluster.close()
  }
}

interface GuideDeps {
  readonly cluster: Cluster
  readonly clusterIp: string
  readonly print: (line: string) => void
  readonly signal: AbortSignal
}

class Guide {
  readonly #deps: GuideDeps
  readonly #stopped: Promise<void>

  constructor(deps: GuideDeps) {
    this.#deps = deps
    this.#stopped = aborted(deps.signal)
  }

  /** Rejects once the tour is stopped. */
  async show(mode: ModeName): Promise<boolean> {
    const { cluster, clusterIp, print } = this.#deps
    print('')
    print(`-- kube-proxy --proxy-mode=${mode}`)
    const proxy = await cluster.useMode(mode)
    if (!(await this.#answers(proxy))) {
      print(`   the Service did not answer; the log of the daemon:\n${proxy.output()}`)
      return false
    }
    print(`   Requests from a pod to ${clusterIp}:${this.#port}, answered by`)
    const before = await this.#call()
    const [victim] = before
    if (before.size !== replicas || victim === undefined) return false
    print(`   kubectl delete pod ${victim}   (its Deployment makes another one)`)
    // As with `kubectl delete pod`, the pod gets its grace period.
    cluster.api.remove({ apiVersion: 'v1', kind: 'Pod', name: victim }, {})
    await this.#untilGone(victim)
    const after = await this.#call()
    const isFine = after.size === replicas && !after.has(victim)
    if (!isFine) print(`   this is wrong; the log of the daemon:\n${proxy.output()}`)
    return isFine
  }

  get #port(): number {
    return this.#deps.cluster.testBed.layout.ports.web
  }

  /** The pods that answer, printed as rows of names that fit a terminal of 80 columns. */
  async #call(): Promise<ReadonlySet<string>> {
    const seen = new Set<string>()
    // Selection is random in the kernel modes: ask until every pod had a fair chance.
    for (let round = 0; round < 20 && seen.size < replicas; round++) {
      const row: (string | undefined)[] = []
      // One request after the other, so that taking turns is visible.
      while (row.length < calls) row.push(...(await this.#ask(1)))
      if (round === 0 || row.some((pod) => pod !== undefined && !seen.has(pod))) {
        for (let first = 0; first < calls; first += replicas) {
          const pair = row.slice(first, first + replicas)
          this.#deps.print(`      ${pair.map((pod) => pod ?? '(no answer)').join('  ')}`)
        }
      }
      for (const pod of row) if (pod !== undefined) seen.add(pod)
    }
    return seen
  }

  async #ask(count: number): Promise<readonly (string | undefined)[]> {
    const { cluster, clusterIp, signal } = this.#deps
    const asked = cluster.testBed.flow('client-pod', {
      protocol: 'TCP',
      host: clusterIp,
      port: this.#port,
      count,
      timeoutMs: 5000,
    })
    const answers = await Promise.race([asked, this.#stopped.then(() => [])])
    // Ctrl-C also ends the daemon, so an answer that is missing after it is no failure.
    signal.throwIfAborted()
    return answers.map(({ backend }) => backend)
  }

  async #answers(proxy: RunningProxy): Promise<boolean> {
    const { signal } = this.#deps
    const isOver = async () =>
      !proxy.isRunning() || (await this.#ask(calls)).every((name) => name !== undefined)
    const isInTime = await untilTrue(isOver, signal, daemonPatienceMs)
    signal.throwIfAborted()
    return isInTime && proxy.isRunning()
  }

  /** Waits until no request reaches the pod any more and its successor answers. */
  async #untilGone(pod: string): Promise<void> {
    const isGone = async () => {
      const names = new Set(await this.#ask(calls * 2))
      return !names.has(pod) && !names.has(undefined) && names.size === replicas
    }
    await untilTrue(isGone, this.#deps.signal, daemonPatienceMs)
  }
}

function createWeb({ api, testBed }: Cluster): KubeObject {
  api.put(webDeployment(replicas))
  const ports = [{ name: 'http', port: testBed.layout.ports.web, targetPort: 8080 }]
  return api.put(serviceOverWeb('web', { ports }))
}
