import type { Source } from './source.js'
import type { ApiClient } from './api-client.js'

interface SourceOptions {
  /** A folder or file instead of an API server; empty: none. */
  readonly manifests: string
  readonly kubeconfig: string
  readonly master: string
  readonly nodeName: string
}

export interface OpenedSource {
  readonly source: Source
  /** The API server, for writing Events; undefined with manifests. */
  readonly client: ApiClient | undefined
}

/** Opens the source of objects. Only the code for this source is loaded. */
export async function openSource(options: SourceOptions): Promise<OpenedSource> {
  const { manifests, kubeconfig, master, nodeName } = options
  if (manifests !== '') {
    const { ManifestFolder } = await import('./manifest-folder.js')
    return { source: new ManifestFolder({ path: manifests }), client: undefined }
  }
  const { openCluster } = await import('./cluster-access.js')
  const { ApiClient } = await import('./api-client.js')
  const { apiServerSource } = await import('./api-server.js')
  const access = await openCluster({ kubeconfig, master })
  const client = new ApiClient(access, 'kube-proxy-ts')
  return { source: apiServerSource({ client, nodeName, isStreamed: isStreamed() }), client }
}

/** The variable is the same in all clients of Kubernetes. */
const isStreamed = () => process.env['KUBE_FEATURE_WatchListClient'] !== 'false'
