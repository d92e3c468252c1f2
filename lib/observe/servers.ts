import { pause } from '../async.js'
import { parseHostPort } from '../config/addresses.js'
import type { Config } from '../config/config.js'
import { isEnabled } from '../config/feature-gates.js'
import { keyEntries } from '../config/keys.js'
import { originText, type Origin } from '../config/settings.js'
import { configObject, valueAt } from '../config/write.js'
import type { EventRecorder } from './events.js'
import type { Health } from './healthz.js'
import type { Guests } from './guests.js'
import { runHttpServer, type HttpHandler } from './http.js'
import type { Logger } from './logger.js'
import type { Metrics } from './metrics.js'
import { healthPages, metricsPages, Slis } from './pages.js'

export interface ServersOptions {
  readonly config: Config
  /** Where values of the configuration came from, for /configz. */
  readonly origins: ReadonlyMap<string, Origin>
  /** The mode that runs. */
  readonly mode: string
  readonly nodeName: string
  readonly version: string
  readonly health: Health
  readonly metrics: Metrics
  readonly log: Logger
  readonly events: EventRecorder
  /** When the process started, in ms since 1970. */
  readonly startedAt: number
  /** The bound on connections, shared by the servers. */
  readonly guests?: Guests
}

/** Runs the health server and the metrics server as configured, until the signal. */
export async function runServers(options: ServersOptions, signal: AbortSignal): Promise<void> {
  const { config, health, metrics } = options
  const slis = new Slis()
  await Promise.all([
    serve(options, signal, {
      address: config.healthzBindAddress,
      what: 'health',
      event: 'FailedToStartProxierHealthcheck',
      handler: healthPages(health, metrics, slis),
    }),
    serve(options, signal, {
      address: config.metricsBindAddress,
      what: 'metrics',
      event: 'FailedToStartMetricServer',
      handler: metricsHandler(options, slis),
    }),
  ])
}

interface Served {
  readonly address: string
  readonly what: string
  /** EV02, EV03. */
  readonly event: string
  readonly handler: HttpHandler
}

const retryMs = 5000

async function serve(options: ServersOptions, signal: AbortSignal, served: Served): Promise<void> {
  const { log, events, config, nodeName } = options
  const { what, event, handler } = served
  // An empty address switches the server off. Validation has refused all other invalid addresses.
  const address = parseHostPort(served.address)
  if (!address) return
  let told = ''
  await runHttpServer(
    {
      ...address,
      handler,
      guests: options.guests,
      // During a take-over the other process still has the port for a moment.
      failHard: config.bindAddressHardFail && !config.takeover,
      retryMs,
      sleep: pause,
      listening: () => log.debug({ address: served.address }, `${what} server listens`),
      failed: (message) => {
        const line = `${what} server cannot start, will retry`
        if (message === told) {
          log.debug({ error: message }, line)
          return
        }
        told = message
        log.error({ error: message }, line)
        events.record({
          type: 'Warning',
          reason: event,
          action: 'StartKubeProxy',
          note: message,
          regarding: { kind: 'Node', namespace: '', name: nodeName },
        })
      },
    },
    signal,
  )
}

function metricsHandler(options: ServersOptions, slis: Slis): HttpHandler {
  const { config, metrics, mode, log, origins } = options
  const gates = config.featureGates
  return metricsPages({
    mode,
    metrics: () => metrics.page(),
    slis: () => slis.page(),
    configz: () => ({
      'kubeproxy.config.k8s.io': configObject(config),
      origins: Object.fromEntries([...origins].map(([path, of]) => [path, originText(of)])),
    }),
    flagz: isEnabled(gates, 'ComponentFlagz') ? () => flagzText(config) : undefined,
    statusz: isEnabled(gates, 'ComponentStatusz') ? () => statuszText(options) : undefined,
    setVerbosity: config.enableProfiling ? (verbosity) => log.setVerbosity(verbosity) : undefined,
  })
}

function flagzText(config: Config): string {
  const lines = keyEntries.flatMap(([path, key]) => {
    const value: unknown = key.kind.toYaml(valueAt(config, path))
    const shown = typeof value === 'string' ? value : JSON.stringify(value)
    return key.flags.map((flag) => `${flag}=${shown}`)
  })
  return `kube-proxy flagz\n\n${[...new Set(lines)].sort().join('\n')}\n`
}

function statuszText({ mode, version, startedAt }: ServersOptions): string {
  const lines = [
    `Started: ${new Date(startedAt).toISOString()}`,
    `Up: ${Math.floor(process.uptime())} s`,
    `Version: ${version}`,
    `Node.js version: ${process.version}`,
    `Mode: ${mode}`,
  ]
  return `kube-proxy statusz\n\n${lines.join('\n')}\n`
}
