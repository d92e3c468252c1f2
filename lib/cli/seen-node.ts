import { once } from 'node:events'
import { get as httpGet, type IncomingMessage } from 'node:http'
import { text as textOf } from 'node:stream/consumers'
import { Option, type Command } from 'commander'
import { given, modeOption, nodeNameOption } from './shared-options.js'
import { ConfigError, messageOf } from '../errors.js'
import { ipFamilies as familiesNow, nodeNameOf } from '../daemon/node-facts.js'
import { fullTable } from '../kernel/obstacles.js'
import { loadConfig } from '../config/load.js'
import { modeMeant } from '../modes/systems.js'
import { modeNames } from '../modes/registry.js'
import type { Config, ModeName } from '../config/config.js'
import { parseFlags, type GivenFlags } from '../config/flags.js'
import { readClusterStates } from './node-states.js'
import type { NodeStates } from '../sources/collected-states.js'
import { readConfiguration } from './configuration.js'
import { ipFamilies } from '../state/ip.js'
import { asArray, asObject, asString, parseJson, strings } from '../state/json.js'
import type { EndpointFailure } from '../state/endpoint-health.js'
import { protocols } from '../state/names.js'

/** The flags that all commands about a live node have. */
export interface NodeFlags {
  readonly proxyMode?: ModeName
  readonly manifests?: string
  readonly kubeconfig?: string
  readonly master?: string
  readonly config?: string
  readonly hostnameOverride?: string
  readonly clusterCidr?: string
  readonly daemon: string
}

/** This node: the configuration of its proxy, and the state that it should serve. */
export interface SeenNode extends NodeStates {
  readonly config: Config
  readonly mode: ModeName
  readonly nodeName: string
}

/**
 * A proxy needs a moment to write a change. In a cluster where Services change all the time, each
 * look would find differences, so one counts only if a second look finds it, too.
 */
export const secondLookAfterMs = 1000

const defaultDaemon = '127.0.0.1:10249'

export const daemonOption = (more = '') =>
  new Option('--daemon <address>', `IP:port of the metrics server of the running proxy${more}`)
    .argParser(daemonAddress)
    .default(defaultDaemon)

/** Without a port, port 80 would be asked, and a misspelt name may take a resolver 10 s. */
function daemonAddress(text: string): string {
  const url = `http://${text}`
  const isAddress = /^([^\s:/?#@[\]]+|\[[^\]]+\]):\d+$/.test(text) && URL.canParse(url)
  if (isAddress) return text
  throw new ConfigError(
    `--daemon: ${JSON.stringify(text)} is not IP:port, such as ${defaultDaemon} or [::1]:10249`,
  )
}

const modeHelp =
  'the mode; default: that of the running proxy, or, if a flag says where the objects are, that of the configuration'

export function addNodeOptions(command: Command): Command {
  return command
    .addOption(modeOption(modeHelp).choices(modeNames))
    .option('--kubeconfig <file>', 'read the objects from the API server of this kubeconfig')
    .option('--master <url>', 'read the objects from the API server at this URL')
    .option('--manifests <path>', 'read Services and EndpointSlices from a file or folder')
    .option('--config <file>', 'the configuration file of the proxy')
    .addOption(nodeNameOption('name of this node in the cluster'))
    .option('--cluster-cidr <cidr>', 'CIDR of the pods')
    .addOption(daemonOption(', which tells its configuration'))
}

/**
 * The configuration, from the flags if they name a source of objects, else from the running proxy.
 * Throws ConfigError that says what to do.
 */
async function configurationOf(flags: NodeFlags) {
  const hasSource = [flags.config, flags.manifests, flags.kubeconfig, flags.master].some(
    (value) => value !== undefined,
  )
  const running = hasSource ? undefined : await askDaemon(wayTo(flags.daemon))
  const config = running?.config ?? (await readConfiguration(givenFlags(flags))).loaded.config
  const isTold = flags.proxyMode === undefined && running !== undefined
  const wanted = isTold ? running.mode : modeMeant(flags.proxyMode ?? config.mode)
  const mode = modeNames.find((name) => name === wanted)
  if (!mode)
    throw new ConfigError(
      `--proxy-mode: the mode of this node is unknown; give one of ${modeNames.join(', ')}`,
    )
  return { config, mode, running }
}

export async function seeNode(flags: NodeFlags): Promise<SeenNode> {
  const { config, mode, running } = await configurationOf(flags)
  const families = running?.families ?? familiesNow()
  const nodeName = nodeNameOf(flags.hostnameOverride ?? config.hostnameOverride)
  // Only a running proxy has results of health checks. Without a proxy nothing is checked.
  const failing = failingEndpoints(await get(flags.daemon, '/failing-endpoints').catch(() => ''))
  const node = running?.node
  const request = { mode, families, nodeName, config, addresses: [], failing, node }
  const states = await readClusterStates(request)
  return { ...states, config, mode, nodeName }
}

function givenFlags(flags: NodeFlags): GivenFlags {
  return given({
    config: flags.config,
    manifests: flags.manifests,
    kubeconfig: flags.kubeconfig,
    master: flags.master,
    'cluster-cidr': flags.clusterCidr,
  })
}

/** A proxy that is there answers at once, unless its node is very busy. */
const answerMs = 10_000

/** A way to the metrics server of a proxy, on this machine or through an API server. */
export interface WayToDaemon {
  /** The name of the proxy in messages. */
  readonly name: string
  readonly get: (path: string) => Promise<string>
}

/**
 * Asks the running proxy for its configuration and mode, on its metrics port, and for the families
 * and the Node object that its rules are about. An older proxy does not tell the last two.
 */
export async function askDaemon(way: WayToDaemon) {
  const [configz, mode] = [await way.get('/configz'), await way.get('/proxyMode')]
  const answer = asObject(parseJson(configz))
  // Another program may have the port.
  const document = asObject(answer?.['kubeproxy.config.k8s.io']) ?? answer
  if (!document)
    throw new ConfigError(`${way.name}/configz answers with something else; is it kube-proxy-ts?`)
  const text = JSON.stringify(document)
  const { config } = loadConfig(parseFlags([]), { name: `${way.name}/configz`, text })
  const families = ipFamilies.filter((family) => strings(answer?.families).includes(family))
  const facts = { families: families.length > 0 ? families : undefined, node: answer?.node }
  return { config, mode: mode.trim(), ...facts }
}

const wayTo = (address: string): WayToDaemon => ({
  name: `http://${address}`,
  get: (path) => get(address, path, ', or give --config, --kubeconfig or --manifests'),
})

/** `orElse` ends the error: it names the flags that need no running proxy. */
export async function get(address: string, path: string, orElse = ''): Promise<string> {
  const url = `http://${address}${path}`
  const late = AbortSignal.timeout(answerMs)
  try {
    return await textAt(url, late)
  } catch (error) {
    const [nothing, usually] = nothingCame
    const [what, toDo] = late.aborted
      ? [nothing, fullTable()[0] ?? usually]
      : [messageOf(error), 'start kube-proxy']
    throw new ConfigError(
      `no proxy answers on ${url}: ${what}; ${toDo}, or give --daemon IP:port if its metrics are elsewhere${orElse}`,
      { cause: error },
    )
  }
}

/** What happened, and what to do about it. */
const nothingCame = [
  `nothing came within ${answerMs / 1000} s`,
  'look at the log and the load of kube-proxy if it runs, start it if not',
] as const

/** `fetch` would do the same, but Node takes 80 ms to load it. */
export async function textAt(url: string, signal: AbortSignal): Promise<string> {
  const request = httpGet(url, { signal, agent: false })
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  const text = await textOf(response)
  if (response.statusCode !== 200) throw new Error(`HTTP ${response.statusCode}`)
  return text
}

/**
 * Reads the answer of `/failing-endpoints` of the running proxy. An answer that makes no sense
 * counts as empty: another program, or another version, may have the port.
 */
export function failingEndpoints(text: string): readonly EndpointFailure[] {
  return (asArray(parseJson(text)) ?? []).flatMap((item) => {
    const line = asObject(item)
    const port = asObject(line?.port)
    const [namespace, name, portName, endpoint, reason] = [
      ...[port?.namespace, port?.name, port?.port, line?.endpoint, line?.reason].map(asString),
    ]
    const protocol = protocols.find((each) => each === port?.protocol)
    if (namespace === undefined || name === undefined || portName === undefined) return []
    if (endpoint === undefined || reason === undefined || !protocol) return []
    return [{ port: { namespace, name, port: portName, protocol }, endpoint, reason }]
  })
}
