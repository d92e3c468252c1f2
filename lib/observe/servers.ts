import { resolve } from 'node:path'
import { pause, type Bell } from '../async.js'
import { parseHostPort, type IpFamily } from '../state/ip.js'
import { writeNode } from '../state/parse-node.js'
import type { Tracker } from '../state/tracker.js'
import type { Config } from '../config/config.js'
import { isEnabled } from '../config/feature-gates.js'
import { keyEntries } from '../config/keys.js'
import type { RunningConfig } from '../config/running.js'
import { originText, quote } from '../config/settings.js'
import { configObject, valueAt } from '../config/write.js'
import type { EventRecorder } from './events.js'
import type { Health } from './healthz.js'
import type { ClientConnections } from './client-connections.js'
import type { EndpointHealth } from './endpoint-health.js'
import { runHttpServer, type HttpHandler } from './http.js'
import type { Logger } from './logger.js'
import type { Metrics } from './metrics.js'
import type { ModeStatus, StatusLine } from './mode-status.js'
import { printable } from '../state/names.js'
import { healthPages, metricsPages, Slis } from './pages.js'

export interface ServersOptions {
  readonly running: RunningConfig
  readonly mode: string
  readonly nodeName: string
  readonly families: readonly IpFamily[]
  readonly tracker: Pick<Tracker, 'node'>
  readonly version: string
  readonly health: Health
  readonly status: ModeStatus
  readonly endpoints: EndpointHealth
  readonly metrics: Metrics
  readonly log: Logger
  readonly events: EventRecorder
  /** When the process started, in ms since 1970. */
  readonly startedAt: number
  /** The newest connections that a query asks for; undefined where none are followed. */
  readonly flows?: ((query: string) => unknown) | undefined
  /** Rung when a port opens that another process had until now. */
  readonly portFreed?: Bell
  /** The bound on connections, shared by the servers. */
  readonly clients?: ClientConnections
  /** Waits before a further try; tests play it. */
  readonly sleep?: typeof pause
}

/** Runs the health server and the metrics server as configured, until the signal. */
export async function runServers(options: ServersOptions, signal: AbortSignal): Promise<void> {
  const { health, metrics } = options
  const slis = new Slis()
  await Promise.all([
    serve(options, signal, {
      address: ({ healthzBindAddress }) => healthzBindAddress,
      what: 'health',
      event: 'FailedToStartProxierHealthcheck',
      handler: healthPages(health, metrics, slis),
    }),
    serve(options, signal, {
      address: ({ metricsBindAddress }) => metricsBindAddress,
      what: 'metrics',
      event: 'FailedToStartMetricServer',
      handler: metricsHandler(options, slis),
    }),
  ])
}

interface Served {
  readonly address: (config: Config) => string
  readonly what: string
  /** EV02, EV03. */
  readonly event: string
  readonly handler: HttpHandler
}

const retryMs = 5000

const waits = 'waits for its port, which the old process has until it ends'

/** Tries that are quiet in a take-over: a minute. */
const takeover = { tries: 240, retryMs: 250 }

async function serve(options: ServersOptions, signal: AbortSignal, served: Served): Promise<void> {
  const { running, log, events, nodeName, clients, sleep: rest = pause } = options
  const { address, what, event, handler } = served
  const { config } = running
  let quietTries = config.takeover ? takeover.tries : 0
  let failHard = config.bindAddressHardFail && !config.takeover
  const serveAt = async (addressText: string, inner: AbortSignal) => {
    // An empty address switches the server off. Validation has refused all other invalid addresses.
    const at = parseHostPort(addressText)
    let told = ''
    const listening = () => {
      // Whoever read of the failure learns its end. The next one is news again.
      log[told === '' ? 'debug' : 'info']({ address: addressText }, `${what} server listens`)
      if (told !== '') options.portFreed?.ring()
      told = ''
      quietTries = 0
    }
    const failed = (note: string, code: string) => {
      if (code === 'EADDRINUSE' && quietTries > 0) {
        quietTries -= 1
        if (told === '') log.info({ address: addressText }, `${what} server ${waits}`)
        told = waits
        return
      }
      quietTries = 0
      const isNews = note !== told
      told = note
      log[isNews ? 'error' : 'debug']({ error: note }, `${what} server cannot start, will retry`)
      if (!isNews) return
      const regarding = { kind: 'Node', namespace: '', name: nodeName } as const
      events.record({ type: 'Warning', reason: event, action: 'StartKubeProxy', note, regarding })
    }
    const sleep = (ms: number, until: AbortSignal) =>
      rest(quietTries > 0 ? takeover.retryMs : ms, until)
    const port = { handler, clients, failHard, retryMs, sleep, listening, failed }
    if (at) await runHttpServer({ ...at, ...port }, inner)
    // A running proxy does not end because of a new address in the file.
    failHard = false
    quietTries = 0
  }
  await running.follow(address, serveAt, signal)
}

function metricsHandler(options: ServersOptions, slis: Slis): HttpHandler {
  const { running, metrics, mode, families, tracker, log } = options
  const gates = running.config.featureGates
  return metricsPages({
    mode,
    metrics: () => metrics.page(),
    slis: () => slis.page(),
    configz: () => ({
      // The reader may be in another folder, so paths are absolute.
      'kubeproxy.config.k8s.io': configObject(running.config, {
        pathAs: (path) => resolve(path),
      }),
      origins: Object.fromEntries([...running.origins].map(([path, of]) => [path, originText(of)])),
      waitingForRestart: Object.fromEntries(running.waiting.map(({ path, to }) => [path, to])),
      ...(running.problem === undefined ? {} : { problem: running.problem }),
      // `diff` and `explain` cannot find out what this process saw at its start, or before a change.
      families,
      ...(tracker.node ? { node: writeNode(tracker.node) } : {}),
    }),
    status: () => statusLines(options),
    flows: options.flows,
    failingEndpoints: () => options.endpoints.failing(),
    flagz: isEnabled(gates, 'ComponentFlagz') ? () => flagzText(running.config) : undefined,
    statusz: isEnabled(gates, 'ComponentStatusz') ? () => statuszText(options) : undefined,
    setVerbosity: () =>
      running.config.enableProfiling ? (verbosity) => log.setVerbosity(verbosity) : undefined,
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

function statusLines({ status, endpoints, running }: ServersOptions): readonly StatusLine[] {
  return [...status.lines(), ...endpoints.lines(), ...configLines(running)]
}

/** The state of the file of --config, for operators. */
function configLines({ problem, waiting }: RunningConfig): readonly StatusLine[] {
  const file = problem === undefined ? 'valid' : `wrong, the last good one is in use: ${problem}`
  const changes = waiting.map(({ path, from, to }) => `${path} from ${quote(from)} to ${quote(to)}`)
  return [
    { name: 'configuration', isGood: problem === undefined, text: file.replaceAll('\n', '; ') },
    {
      name: 'waiting for a restart',
      isGood: changes.length === 0,
      text: changes.length === 0 ? 'nothing' : changes.join(', '),
    },
  ]
}

function statuszText(options: ServersOptions): string {
  const { version, startedAt } = options
  const lines = [
    `Started: ${new Date(startedAt).toISOString()}`,
    `Up: ${Math.floor(process.uptime())} s`,
    `Version: ${version}`,
    `Node.js version: ${process.version}`,
    ...statusLines(options).map(
      ({ name, text }) => `${name[0]?.toUpperCase()}${name.slice(1)}: ${printable(text)}`,
    ),
  ]
  return `kube-proxy statusz\n\n${lines.join('\n')}\n`
}
