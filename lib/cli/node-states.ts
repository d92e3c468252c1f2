import { setTimeout as delay } from 'node:timers/promises'
import { ConfigError, SourceError } from '../errors.js'
import { ManifestFolder } from '../sources/manifest-folder.js'
import { addressReader } from '../sources/node-addresses.js'
import { openSource } from '../sources/open-source.js'
import { collect, type Collected, type NodeStates } from '../sources/collected-states.js'
import { trackerSettings } from '../config/tracker-settings.js'
import type { Config, ModeName } from '../config/config.js'
import type { EndpointFailure } from '../state/endpoint-health.js'
import type { IpFamily } from '../state/ip.js'

interface NodeStatesRequest {
  readonly mode: ModeName
  readonly families: readonly IpFamily[]
  readonly nodeName: string
  readonly config: Config
  /** The addresses of the node; empty: those of this machine. */
  readonly addresses: readonly string[]
  /** Endpoints that fail their health check. */
  readonly failing?: readonly EndpointFailure[]
  /** The Node object with the values that the running proxy last saw. */
  readonly node?: unknown
}

/** A node that does not exist, for manifests in a file or folder. */
export interface ManifestStatesRequest extends NodeStatesRequest {
  readonly manifests: string
}

/** The states that manifests make on a node. Throws ConfigError when there is nothing to read. */
export async function readManifestStates(request: ManifestStatesRequest): Promise<NodeStates> {
  const collected = await collectFor(request)
  await new ManifestFolder({ path: request.manifests }).load(collected.sink)
  if (!collected.sink.isComplete) {
    throw new ConfigError(
      ['--manifests: no object can be read there', ...collected.warnings()].join('\n'),
    )
  }
  return collected.taken()
}

/** How long to wait for the objects, and for the kinds of them that may never come. */
const patienceMs = 20_000
const optionalPatienceMs = 2_000

/** The objects of the API server (or folder) that the configuration names, read once. */
export async function readClusterStates(request: NodeStatesRequest): Promise<NodeStates> {
  const { config, nodeName, node } = request
  const collected = await collectFor(request)
  if (node !== undefined) collected.sink.upsert('Node', node)
  const { source } = await openSource({
    manifests: config.manifests,
    kubeconfig: config.clientConnection.kubeconfig,
    master: config.master,
    nodeName,
  })
  const done = new AbortController()
  const running = source.run(collected.sink, done.signal)
  try {
    await Promise.race([running, untilComplete(collected)])
  } finally {
    done.abort()
    await running.catch(() => undefined)
  }
  if (!collected.sink.isComplete) {
    const warnings = collected.warnings()
    const why = warnings.length > 0 ? `: ${warnings.join('; ')}` : ''
    throw new SourceError(
      `read Services and EndpointSlices: not complete after ${patienceMs / 1000} s${why}; --kubeconfig, --master or --manifests say where they are`,
    )
  }
  return collected.taken()
}

async function untilComplete({ sink }: Collected): Promise<void> {
  for (let waited = 0; waited < patienceMs && !sink.isComplete; waited += pollMs) {
    if (waited >= optionalPatienceMs) {
      sink.stopWaitingFor('Node')
      sink.stopWaitingFor('ServiceCIDR')
    }
    await delay(pollMs)
  }
}

const pollMs = 20

async function collectFor(request: NodeStatesRequest): Promise<Collected> {
  const { mode, families, nodeName, config, addresses, failing } = request
  const settings = trackerSettings(config, mode, { nodeName, families })
  const ofThisMachine = async () => (await (await addressReader())()) ?? []
  return collect(settings, addresses.length > 0 ? addresses : await ofThisMachine(), failing)
}
