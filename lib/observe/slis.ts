import { Counter, Gauge, Registry } from 'prom-client'

/** The page /metrics/slis: what every Kubernetes component tells about its health checks. */
export class Slis {
  readonly #registry = new Registry()
  readonly #state: Gauge
  readonly #total: Counter

  constructor() {
    const registers = [this.#registry]
    this.#state = new Gauge({
      name: 'kubernetes_healthcheck',
      help: 'Whether the check went well the last time',
      labelNames: ['name', 'type'],
      registers,
    })
    this.#total = new Counter({
      name: 'kubernetes_healthchecks_total',
      help: 'Checks, by how they went',
      labelNames: ['name', 'type', 'status'],
      registers,
    })
  }

  /** A check of type `healthz`, `livez` or `readyz` was made. */
  record(type: string, isGood: boolean): void {
    this.#state.set({ name: 'sync', type }, isGood ? 1 : 0)
    this.#total.inc({ name: 'sync', type, status: isGood ? 'success' : 'error' })
  }

  async page(): Promise<{ readonly type: string; readonly body: string }> {
    return { type: this.#registry.contentType, body: await this.#registry.metrics() }
  }
}
