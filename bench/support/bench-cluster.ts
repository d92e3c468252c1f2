import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { fill } from '../../lib/lab/apiserver/load.js'
import { createApiServer, type ApiServer } from '../../lib/lab/apiserver/server.js'
import { writeKubeconfig } from '../../lib/lab/apiserver/kubeconfig.js'
import { forward, openBridge } from '../../lib/lab/world/bridge.js'
import { addressOf, ranges } from '../../lib/lab/world/topology.js'
import { createWorld, type World, type WorldOptions } from '../../lib/lab/world/world.js'
import type { Protocol } from '../../lib/state/names.js'

export const nodeName = 'node-1'
/** Where the API server is for programs on the node. */
export const apiPort = 6443
const clusterIp = '10.96.250.10'
const patienceMs = Number(process.env['BENCH_PATIENCE_MS'] ?? 300_000)

export interface BenchCluster {
  readonly world: World
  readonly api: ApiServer
  /** For programs on the node. */
  readonly kubeconfig: string
}

/** Makes a node and an API server with `count` Services and one more, `probe`, that answers. */
export async function inCluster<T>(
  count: number,
  act: (cluster: BenchCluster) => Promise<T>,
  { withCgroup = false }: Pick<WorldOptions, 'withCgroup'> = {},
): Promise<T> {
  const folder = mkdtempSync(join(tmpdir(), 'bench-daemon-'))
  const world = await createWorld({ name: 'bench', withCgroup })
  const api = createApiServer()
  const stop = new AbortController()
  const serving = api.run(stop.signal)
  const url = new URL(await api.listening())
  const path = join(folder, 'api.sock')
  const door = await forward({ path }, { host: url.hostname, port: Number(url.port) })
  const bridge = await openBridge({
    namespace: world.namespaces.node,
    from: { port: apiPort },
    to: { path },
  })
  try {
    const kubeconfig = join(folder, 'kubeconfig')
    await writeKubeconfig(kubeconfig, { url: `http://127.0.0.1:${apiPort}` })
    load(api, count)
    // The API server runs in this process, and what earlier clusters left would be collected meanwhile.
    globalThis.gc?.()
    return await act({ world, api, kubeconfig })
  } finally {
    await bridge.close()
    door.close()
    stop.abort()
    await serving
    await world.close()
    rmSync(folder, { recursive: true, force: true })
  }
}

/** The arguments of our proxy on the node. */
export function proxyArguments(kubeconfig: string, mode: string, node = nodeName): string[] {
  return [
    ...['--kubeconfig', kubeconfig, '--hostname-override', node, '--proxy-mode', mode],
    ...['--proxy-mode-fallback', 'none', '--cluster-cidr', ranges.clusterPods.IPv4],
  ]
}

/** Starts our proxy on the node; it ends with the cluster. `said` gives its last output. */
export function startProxy({ world, kubeconfig }: BenchCluster, mode: string) {
  const main = fileURLToPath(new URL('../../lib/cli/main.js', import.meta.url))
  const child = world.spawn('node', [
    ...[process.execPath, main, ...proxyArguments(kubeconfig, mode)],
    ...(world.cgroup === undefined ? [] : ['--ebpf-cgroup', world.cgroup, '--ebpf-bpffs=']),
  ])
  let said = ''
  child.stderr.setEncoding('utf8').on('data', (text: string) => (said = (said + text).slice(-500)))
  child.stdout.resume()
  return { isAlive: () => child.exitCode === null, said: () => said }
}

/** Tries new connections, one after the other without a pause, until one reaches this pod. */
export async function answers(world: World, pod: string, isAlive: () => boolean): Promise<boolean> {
  const request = { protocol: 'TCP', host: clusterIp, port: 80, timeoutMs: 200 } as const
  const deadline = performance.now() + patienceMs
  while (performance.now() < deadline && isAlive()) {
    const [result] = await world.agent('client-pod').flow(request)
    if (result?.backend === pod) return true
  }
  return false
}

/** Moves `probe` to a pod. */
export function moveProbe(api: ApiServer, pod: 'pod-1' | 'pod-2'): void {
  api.put(slice('probe', [addressOf(pod, 'IPv4')]))
}

function load(api: ApiServer, count: number): void {
  api.put({
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: nodeName },
    status: { addresses: [{ type: 'InternalIP', address: addressOf('node', 'IPv4') }] },
  })
  fill(api, { services: count, endpoints: 10 })
  api.put(service('probe', clusterIp))
  api.put(slice('probe', [addressOf('pod-1', 'IPv4')]))
}

interface Traits {
  readonly protocol?: Protocol
  readonly annotations?: Readonly<Record<string, string>>
}

export function service(
  name: string,
  address: string,
  { protocol = 'TCP', annotations = {} }: Traits = {},
) {
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name, namespace: 'default', annotations },
    spec: {
      type: 'ClusterIP',
      clusterIP: address,
      clusterIPs: [address],
      ports: [{ name: 'main', protocol, port: 80, targetPort: 8080 }],
    },
  }
}

interface SliceTraits {
  readonly protocol?: Protocol
  readonly port?: number
}

/** An EndpointSlice for one port. A Service has one for each port of its endpoints. */
export function slice(
  name: string,
  addresses: readonly string[],
  { protocol = 'TCP', port = 8080 }: SliceTraits = {},
) {
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      name: `${name}-${port}`,
      namespace: 'default',
      labels: { 'kubernetes.io/service-name': name },
    },
    addressType: 'IPv4',
    ports: [{ name: 'main', protocol, port }],
    endpoints: addresses.map((address) => ({
      addresses: [address],
      conditions: { ready: true, serving: true, terminating: false },
      nodeName,
    })),
  }
}
