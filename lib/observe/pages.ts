import { Counter, Gauge, Registry } from 'prom-client'
import { ConfigError } from '../errors.js'
import type { Meter } from '../modes/mode.js'
import { json, text, type HttpHandler, type HttpReply, type HttpRequest } from './http.js'
import type { Health, HealthAnswer } from './healthz.js'
import type { StatusLine } from './mode-status.js'
import { printable } from '../state/names.js'

/** The answers of the health server (H01-H06). They hold few details, as the port is public. */
export function healthPages(health: Health, meter: Meter, slis: Slis): HttpHandler {
  const answers: Readonly<Record<string, () => HealthAnswer>> = {
    '/healthz': () => health.healthz(),
    '/livez': () => health.livez(),
    '/readyz': () => health.readyz(),
  }
  return ({ method, path }) => {
    const page = Object.hasOwn(answers, path) ? answers[path] : undefined
    if (!page) return notFound
    if (method !== 'GET' && method !== 'HEAD') return notAllowed('GET')
    const { code, body } = page()
    const type = path.slice(1)
    // kube-proxy has no readyz, so there is no metric for it (H06).
    if (type !== 'readyz') meter.count(`proxy_${type}_total`, { code: String(code) })
    slis.record(type, code === 200)
    return json(body, code)
  }
}

interface MetricsPages {
  readonly mode: string
  readonly metrics: () => Promise<{ readonly type: string; readonly body: string }>
  /** kubernetes_healthcheck of /metrics/slis. */
  readonly slis: () => Promise<{ readonly type: string; readonly body: string }>
  /** The whole configuration, and the origins of its values. */
  readonly configz: () => unknown
  /** What works and what fails, for `/healthz?verbose`. */
  readonly status: () => readonly StatusLine[]
  /** The endpoints that fail their health check, for `explain` and `diff`. */
  readonly failingEndpoints: () => unknown
  /** The newest connections that a query asks for; undefined where none are followed. */
  readonly flows?: ((query: string) => unknown) | undefined
  /** The values of all flags; undefined unless the gate ComponentFlagz is on (H09). */
  readonly flagz: (() => string) | undefined
  readonly statusz: (() => string) | undefined
  /** With enableProfiling: sets the verbosity of the log (H08). */
  readonly setVerbosity: () => ((verbosity: number) => void) | undefined
}

/** The answers of the metrics server (H07-H09). */
export function metricsPages(pages: MetricsPages): HttpHandler {
  const { flagz, statusz } = pages
  const routes: Record<string, (query: string) => HttpReply | Promise<HttpReply>> = {
    '/configz': () => json(pages.configz()),
    '/failing-endpoints': () => json(pages.failingEndpoints()),
    '/healthz': (query) =>
      new URLSearchParams(query).has('verbose') ? text(verboseText(pages.status())) : text('ok'),
    '/metrics': async () => ({ status: 200, ...(await pages.metrics()) }),
    '/metrics/slis': async () => ({ status: 200, ...(await pages.slis()) }),
    '/proxyMode': () => text(pages.mode),
  }
  const { flows } = pages
  if (flows) routes['/flows'] = (query) => answerOrAdvice(() => flows(query))
  if (flagz) routes['/flagz'] = () => text(flagz())
  if (statusz) routes['/statusz'] = () => text(statusz())
  routes['/'] = () => json({ paths: Object.keys(routes).sort() })
  return (request) => {
    const { method, path, query } = request
    const setVerbosity = pages.setVerbosity()
    if (path === '/debug/flags/v' && setVerbosity) return changeVerbosity(request, setVerbosity)
    const page = Object.hasOwn(routes, path) ? routes[path] : undefined
    if (!page) return notFound
    return method === 'GET' || method === 'HEAD' ? page(query) : notAllowed('GET')
  }
}

/** A person writes the query, so a wrong query is no failure of this program. */
function answerOrAdvice(answer: () => unknown): HttpReply {
  try {
    return json(answer())
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    return text(`${error.message}\n`, 400)
  }
}

/**
 * As other Kubernetes components write it: `[+]` works, `[-]` does not. A text may come from another
 * program, and is read on terminals.
 */
function verboseText(lines: readonly StatusLine[]): string {
  const marked = lines.map(
    ({ name, isGood, text }) => `[${isGood ? '+' : '-'}]${name}: ${printable(text)}\n`,
  )
  return `${marked.join('')}healthz check passed\n`
}

function changeVerbosity(
  { method, body }: HttpRequest,
  setVerbosity: (verbosity: number) => void,
): HttpReply {
  if (method !== 'PUT') return notAllowed('PUT')
  if (!/^\d{1,3}$/.test(body.trim())) return text('the body must be a number, such as 4\n', 400)
  setVerbosity(Number(body))
  return text(`successfully set verbosity to ${Number(body)}\n`)
}

const notFound = text('404 page not found\n', 404)

function notAllowed(allow: string): HttpReply {
  return { ...text('405 method not allowed\n', 405), headers: { Allow: allow } }
}

/** The page /metrics/slis, which every Kubernetes component has: results of health checks. */
export class Slis {
  readonly #registry = new Registry()
  readonly #state: Gauge
  readonly #total: Counter

  constructor() {
    const registers = [this.#registry]
    this.#state = new Gauge({
      name: 'kubernetes_healthcheck',
      help: '1 if the last check succeeded, else 0',
      labelNames: ['name', 'type'],
      registers,
    })
    this.#total = new Counter({
      name: 'kubernetes_healthchecks_total',
      help: 'Checks by result',
      labelNames: ['name', 'type', 'status'],
      registers,
    })
  }

  /** Counts a check of type `healthz`, `livez` or `readyz`. */
  record(type: string, isGood: boolean): void {
    this.#state.set({ name: 'sync', type }, isGood ? 1 : 0)
    this.#total.inc({ name: 'sync', type, status: isGood ? 'success' : 'error' })
  }

  async page(): Promise<{ readonly type: string; readonly body: string }> {
    return { type: this.#registry.contentType, body: await this.#registry.metrics() }
  }
}
