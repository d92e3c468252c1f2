import { hostname } from 'node:os'
import { InvalidArgumentError, type Command } from 'commander'
import { selfSigned } from '../apiserver/certificate.js'
import { fill, keepChanging, mostEndpoints, mostServices, parseLoad } from '../apiserver/load.js'
import type { Load } from '../apiserver/load.js'
import { seedFrom } from '../apiserver/manifests.js'
import { validateName } from '../apiserver/names.js'
import { stopSignal } from '../../cli/process.js'
import { createApiServer, type ApiServer } from '../apiserver/server.js'

interface ApiServerFlags {
  readonly listen: { readonly host: string; readonly port: number }
  readonly manifests?: string
  readonly writeKubeconfig?: string
  readonly tls?: boolean
  readonly load?: Load
  readonly changes?: number
}

/** Adds `kube-proxy-ts apiserver`: the Kubernetes API in memory, to try things without a cluster. */
export function addApiserverCommand(program: Command): void {
  program
    .command('apiserver')
    .description('serve the Kubernetes API from memory, so that kubectl works without a cluster')
    .option('--listen <host:port>', 'where to serve (default 127.0.0.1:8001)', parseListen)
    .option('--manifests <path>', 'a file or folder of YAML or JSON with the first objects')
    .option('--write-kubeconfig <file>', 'write a kubeconfig once the server answers')
    .option(
      '--load <services>x<endpoints>',
      'make so many Services with so many endpoints each, to try how a proxy scales',
      parseLoadFlag,
    )
    .option('--changes <number>/s', 'change so many EndpointSlices of the load a second', parseRate)
    .option('--tls', 'serve HTTPS with a new certificate, which the kubeconfig contains')
    .action((flags: Partial<ApiServerFlags>) =>
      serveUntilSignal({ listen: { host: '127.0.0.1', port: 8001 }, ...flags }),
    )
}

async function serveUntilSignal(flags: ApiServerFlags): Promise<void> {
  // A terminal that is closed sends SIGHUP.
  const signal = stopSignal('SIGHUP')
  const hosts = ['127.0.0.1', '::1', 'localhost', hostname(), flags.listen.host]
  const api = createApiServer({
    ...flags.listen,
    onControllerError: (error) => say(String(error)),
    ...(flags.tls === true ? { tls: selfSigned([...new Set(hosts)]) } : {}),
  })
  if (flags.manifests !== undefined) await seedFrom(flags.manifests, api)
  if (flags.load) fill(api, flags.load)
  if (api.list({ apiVersion: 'v1', kind: 'Node' }).length === 0) addNode(api)
  const running = api.run(signal)
  // A server that cannot listen is never announced. Its promise rejects with the reason.
  await Promise.race([running, announce(api, flags.writeKubeconfig)])
  const { load, changes = 0 } = flags
  if (load && changes > 0) {
    const late = () =>
      say(`this machine cannot make ${changes} changes a second; it makes as many as it can`)
    await keepChanging(api, load, { perSecond: changes, late }, signal)
  }
  await running
}

async function announce(api: ApiServer, kubeconfig: string | undefined): Promise<void> {
  const url = await api.listening()
  // A file that cannot be written ends the command.
  if (kubeconfig !== undefined) await api.writeKubeconfig(kubeconfig)
  say(`serving the Kubernetes API at ${url}`)
  if (kubeconfig !== undefined) say(`try: kubectl --kubeconfig ${kubeconfig} get all -A`)
}

/** Pods need a node, so this machine is added as one. */
function addNode(api: ApiServer): void {
  const since = new Date().toISOString()
  api.put({
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: nodeNameFor(hostname()) },
    status: {
      addresses: [{ type: 'InternalIP', address: '127.0.0.1' }],
      conditions: [{ type: 'Ready', status: 'True', lastTransitionTime: since }],
    },
  })
}

/** Hosts may have names that no Node can have, such as `build_host`. */
export function nodeNameFor(host: string): string {
  const name = host.toLowerCase()
  return validateName('metadata.name', name, 'subdomain').length === 0 ? name : 'node-1'
}

function parseListen(text: string): ApiServerFlags['listen'] {
  const found = /^(?:\[([^\]]+)\]|([^:]*)):(\d{1,5})$/.exec(text)
  const port = Number(found?.[3])
  if (found === null || port > 65_535) {
    throw new InvalidArgumentError('expected HOST:PORT, such as 127.0.0.1:8001 or [::1]:8001')
  }
  const host = found[1] ?? found[2] ?? ''
  return { host: host === '' ? '127.0.0.1' : host, port }
}

function parseLoadFlag(text: string): Load {
  const load = parseLoad(text)
  if (load) return load
  throw new InvalidArgumentError(
    `expected SERVICESxENDPOINTS, such as 5000x10; at most ${mostServices} Services and ${mostEndpoints} endpoints`,
  )
}

function parseRate(text: string): number {
  const rate = /^(\d{1,5})(?:\/s)?$/.exec(text)?.[1]
  if (rate === undefined) throw new InvalidArgumentError('expected a number a second, such as 20/s')
  return Number(rate)
}

function say(text: string): void {
  process.stdout.write(`${text}\n`)
}
