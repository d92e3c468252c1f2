import type { Worker } from 'node:worker_threads'
import { startThread } from '../../engine.js'
import type { TrackedFlow } from '../../kernel/flow-message.js'
import type { EndpointFailure } from '../../state/endpoint-health.js'
import type { CountersView } from '../../page/view.js'

/** What is read in the network namespace of the node. */
export type GaugeQuestion =
  | { readonly ask: 'ready' }
  | { readonly ask: 'failing' }
  | { readonly ask: 'tracked' }
  | { readonly ask: 'count'; readonly mode: string }

/** Raw answers; counters.ts reads them. */
export interface GaugeAnswer {
  readonly isReady?: boolean
  /** `iptables-save -c` */
  readonly iptables?: string
  /** The connections that the kernel tracks. */
  readonly tracked?: readonly TrackedFlow[]
  /** `ipvsadm -Ln --stats` */
  readonly ipvs?: string
  /** The endpoints that fail their health check, as the daemon says. */
  readonly failing?: readonly EndpointFailure[]
  /** The daemon's own /metrics. */
  readonly metrics?: string
  /** Numbers of a simulated node, as they are shown. */
  readonly simulated?: Pick<CountersView, 'rules' | 'endpoints'>
}

export interface GaugeWorkerMessage extends GaugeAnswer {
  readonly number: number
}

/** Where the daemon answers, as seen from the node. */
interface DaemonUrls {
  readonly metrics: string
  readonly health: string
}

export interface GaugePlace {
  readonly urls: DaemonUrls
  readonly namespace: string | undefined
}

/** Reads what a node counts. */
export interface Gauge {
  /** An empty answer when nothing could be read. */
  ask(question: GaugeQuestion): Promise<GaugeAnswer>
}

/**
 * A worker thread inside the node's namespace, if it has one. So a reading needs no process of its
 * own.
 */
export class NodeGauge implements Gauge {
  readonly #worker: Worker
  readonly #waiting = new Map<number, (answer: GaugeAnswer) => void>()
  /** The worker is ready, or has ended. */
  readonly #isUp: Promise<void>
  #numbers = 0
  #hasEnded = false

  constructor(urls: DaemonUrls, namespace?: string) {
    const place: GaugePlace = { urls, namespace }
    this.#worker = startThread(new URL('./node-gauge-worker.js', import.meta.url), place)
    this.#worker.on('message', ({ number, ...answer }: GaugeWorkerMessage) => {
      this.#waiting.get(number)?.(answer)
      this.#waiting.delete(number)
    })
    let up: () => void = () => undefined
    this.#isUp = new Promise((resolve) => (up = resolve))
    this.#worker.once('message', up)
    const end = () => {
      up()
      this.#hasEnded = true
      for (const resolve of this.#waiting.values()) resolve({})
      this.#waiting.clear()
    }
    this.#worker.on('error', end)
    this.#worker.on('exit', end)
    this.#worker.unref()
  }

  /** An empty answer when nothing could be read. */
  ask(question: GaugeQuestion): Promise<GaugeAnswer> {
    if (this.#hasEnded) return Promise.resolve({})
    const number = ++this.#numbers
    return new Promise((resolve) => {
      this.#waiting.set(number, resolve)
      this.#worker.postMessage({ number, ...question })
    })
  }

  /**
   * Waits for the worker, because Node aborts when a thread ends while it loads a native module
   * such as koffi.
   */
  async close(): Promise<void> {
    // Otherwise a process that does nothing else would end here, and clean nothing up.
    this.#worker.ref()
    await this.#isUp
    await this.#worker.terminate()
  }
}
