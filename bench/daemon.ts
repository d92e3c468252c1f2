import { spawn } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { once } from 'node:events'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { createApiServer, type ApiServer } from '../lib/lab/apiserver/server.js'
import { writeKubeconfig } from '../lib/lab/apiserver/kubeconfig.js'
import { forward, openBridge } from '../lib/lab/world/bridge.js'
import { addressOf } from '../lib/lab/world/topology.js'
import { createWorld, type World } from '../lib/lab/world/world.js'
import type { ChangeCosts } from './support/change-costs.js'
import { argumentsOf, type Peer } from './support/peers.js'
import { cpuMilliseconds, residentMib } from './support/process-usage.js'
import type { BenchResult, BenchResults } from './support/results.js'
import { summarize } from './support/summary.js'

const services = Number(process.env['BENCH_SERVICES'] ?? 1000)
const changes = Number(process.env['BENCH_CHANGES'] ?? 30)
const patienceMs = Number(process.env['BENCH_PATIENCE_MS'] ?? 90_000)
const modes = (process.env['BENCH_MODES'] ?? 'nftables,iptables,userspace').split(',')
export const nodeName = 'node-1'
const clusterIp = '10.96.250.10'

const ours: Peer = {
  name: 'ours',
  command:
    `${process.execPath} ${fileURLToPath(new URL('../lib/cli/main.js', import.meta.url))}` +
    ' --kubeconfig {kubeconfig} --hostname-override {node} --proxy-mode {mode}' +
    ' --proxy-mode-fallback none --iptables-min-sync-period 0s --cluster-cidr 10.244.0.0/16',
}

/**
 * Whole programs, as a node runs them, against an API server: from the start of the process, and
 * from the change of an EndpointSlice, until a real connection arrives where it should.
 */
export async function run(peers: readonly Peer[] = []): Promise<BenchResults> {
  const results: BenchResult[] = []
  for (const mode of modes) {
    let own: ChangeCosts | undefined
    for (const peer of [ours, ...peers]) {
      const measured = await measure(peer, mode)
      if (typeof measured === 'string') console.log(`${peer.name}, ${mode}: ${measured}`)
      else console.log(`${peer.name}, ${mode}:`, measured)
      results.push(...resultsOf(peer.name, mode, measured, own))
      if (peer === ours && typeof measured !== 'string') own = measured
    }
  }
  return results
}

const rows = [
  ['start until the newest Service answers', 'startMs', 'ms'],
  ['change until a connection lands there, p50', 'p50Ms', 'ms'],
  ['change until a connection lands there, p99', 'p99Ms', 'ms'],
  ['CPU a change', 'cpuMs', 'ms'],
  ['memory', 'memoryMib', 'MiB'],
] as const

function resultsOf(
  name: string,
  mode: string,
  measured: ChangeCosts | string,
  own: ChangeCosts | undefined,
): BenchResults {
  const at = `${name}, ${mode}, ${services.toLocaleString('en-US')} Services x 10`
  if (typeof measured === 'string') {
    return [{ name: `${at}: ${rows[0][0]}`, value: NaN, unit: 'ms', note: measured }]
  }
  return rows.map(([what, key, unit]) => ({
    name: `${at}: ${what}`,
    value: measured[key],
    unit,
    ...(own ? { note: `${(measured[key] / own[key]).toPrecision(3)} of ours` } : {}),
  }))
}

/** A text says why it could not be measured. */
function measure(peer: Peer, mode: string): Promise<ChangeCosts | string> {
  return inCluster(services, ({ world, api, kubeconfig }) =>
    watch(world, api, argumentsOf(peer.command, { kubeconfig, node: nodeName, mode })),
  )
}

export interface BenchCluster {
  readonly world: World
  readonly api: ApiServer
  /** For programs on the node. */
  readonly kubeconfig: string
}

/** A node, and an API server with so many Services and one more, `probe`, that answers. */
export async function inCluster<T>(
  count: number,
  act: (cluster: BenchCluster) => Promise<T>,
): Promise<T> {
  const folder = mkdtempSync(join(tmpdir(), 'bench-daemon-'))
  const world = await createWorld({ name: 'bench' })
  const api = createApiServer()
  const stop = new AbortController()
  const serving = api.run(stop.signal)
  const url = new URL(await api.listening())
  const path = join(folder, 'api.sock')
  const door = await forward({ path }, { host: url.hostname, port: Number(url.port) })
  const bridge = await openBridge({
    namespace: world.namespaces.node,
    from: { port: 6443 },
    to: { path },
  })
  try {
    const kubeconfig = join(folder, 'kubeconfig')
    await writeKubeconfig(kubeconfig, { url: 'http://127.0.0.1:6443' })
    load(api, count)
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

async function watch(
  world: World,
  api: ApiServer,
  argv: readonly string[],
): Promise<ChangeCosts | string> {
  const began = performance.now()
  const child = spawn('ip', ['netns', 'exec', world.namespaces.node, ...argv], {
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let said = ''
  child.stderr.setEncoding('utf8').on('data', (text: string) => (said = (said + text).slice(-500)))
  const exited = once(child, 'exit')
  try {
    if (!(await answers(world, 'pod-1', () => child.exitCode === null))) {
      return `no answer within ${patienceMs / 1000} s; it said: ${said.trim()}`
    }
    const startMs = performance.now() - began
    // What follows the first rules, such as cleaning up, is no part of a change.
    await delay(1500)
    const pid = child.pid ?? 0
    const before = cpuMilliseconds(pid)
    const times: number[] = []
    for (let change = 0; change < changes; change++) {
      const target = change % 2 === 0 ? 'pod-2' : 'pod-1'
      const changed = performance.now()
      moveProbe(api, target)
      if (!(await answers(world, target, () => child.exitCode === null))) {
        return `change ${change + 1} did not arrive; it said: ${said.trim()}`
      }
      times.push(performance.now() - changed)
      await delay(20)
    }
    const { p50: p50Ms, p99: p99Ms } = summarize(times)
    const cpuMs = (cpuMilliseconds(pid) - before) / changes
    return { startMs, p50Ms, p99Ms, cpuMs, memoryMib: residentMib(pid) }
  } finally {
    child.kill('SIGKILL')
    await exited
  }
}

/** Tries new connections until one reaches this pod. */
export async function answers(world: World, pod: string, isAlive: () => boolean): Promise<boolean> {
  const request = { protocol: 'TCP', host: clusterIp, port: 80, timeoutMs: 200 } as const
  const deadline = performance.now() + patienceMs
  while (performance.now() < deadline && isAlive()) {
    const [result] = await world.agent('client-pod').flow(request)
    if (result?.backend === pod) return true
    await delay(1)
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
  for (let index = 0; index < count; index++) {
    const name = `service-${index}`
    api.put(service(name, `10.96.${index >> 8}.${index & 255}`))
    const endpoints = Array.from({ length: 10 }, (_, at) => {
      const number = index * 10 + at
      return `10.${150 + (number >> 16)}.${(number >> 8) & 255}.${number & 255}`
    })
    api.put(slice(name, endpoints))
  }
  api.put(service('probe', clusterIp))
  api.put(slice('probe', [addressOf('pod-1', 'IPv4')]))
}

function service(name: string, address: string) {
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name, namespace: 'default' },
    spec: {
      type: 'ClusterIP',
      clusterIP: address,
      clusterIPs: [address],
      ports: [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080 }],
    },
  }
}

function slice(name: string, addresses: readonly string[]) {
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      name: `${name}-1`,
      namespace: 'default',
      labels: { 'kubernetes.io/service-name': name },
    },
    addressType: 'IPv4',
    ports: [{ name: 'http', protocol: 'TCP', port: 8080 }],
    endpoints: addresses.map((address) => ({
      addresses: [address],
      conditions: { ready: true, serving: true, terminating: false },
      nodeName,
    })),
  }
}
