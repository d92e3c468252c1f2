import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { NodeNetwork } from './support/node-network.js'
import { cpuMilliseconds, residentMib } from './support/process-usage.js'
import { Program } from './support/program.js'
import type { BenchResult, BenchResults } from './support/results.js'
import { summarize } from './support/summary.js'

const counts = (process.env['BENCH_PROXIES'] ?? '1,5,10,25,50').split(',').map(Number)
const services = Number(process.env['BENCH_SERVICES'] ?? 1000)
/** Few enough for fifty proxies on two processors. */
const changesPerSecond = Number(process.env['BENCH_CHANGES_PER_SECOND'] ?? 5)
const seconds = Number(process.env['BENCH_STEADY_SECONDS'] ?? 20)
/** The number of proxies that start together, as when a DaemonSet is rolled out. */
const startsAtOnce = 5
const port = 8001

/** The measurements with one number of proxies, when all of them run. */
interface Row {
  readonly proxies: number
  /** The costs of each added proxy until its rules were written. */
  readonly start: { readonly apiMb: number; readonly apiCpuMs: number; readonly cpuMs: number }
  readonly connections: number
  /** Sent by the API server, in kB a second. */
  readonly kbPerSecond: number
  /** Of a core, in percent. */
  readonly apiCpu: number
  readonly proxyCpu: number
  readonly apiMib: number
  readonly proxyMib: number
}

/**
 * One API server and more and more proxies, each on a node of its own: what the server sends, the
 * connections that it keeps, and the processor time of both sides. Slices change all the time.
 */
export async function run(): Promise<BenchResults> {
  const folder = mkdtempSync(join(tmpdir(), 'bench-proxies-'))
  const network = new NodeNetwork()
  const proxies: Program[] = []
  let api: Program | undefined
  try {
    const kubeconfig = join(folder, 'kubeconfig')
    api = await startServer(network, kubeconfig)
    const rows: Row[] = []
    for (const count of counts) {
      const start = await grow({ network, proxies, api, kubeconfig }, count)
      const row = { proxies: count, start, ...(await steady(network, proxies, api)) }
      // Printed at once, because fifty proxies take long and somebody may end the run.
      console.log(row)
      rows.push(row)
    }
    return rows.flatMap(resultsOf)
  } finally {
    await Promise.all([...proxies, ...(api ? [api] : [])].map((program) => program.end()))
    network.close()
    rmSync(folder, { recursive: true, force: true })
  }
}

async function startServer(network: NodeNetwork, kubeconfig: string): Promise<Program> {
  const api = new Program(network.server, 'main.js', [
    ...['apiserver', '--tls', '--listen', `${network.serverAddress}:${port}`],
    ...['--load', `${services}x10`, '--changes', `${changesPerSecond}/s`],
    ...['--write-kubeconfig', kubeconfig],
  ])
  await api.says(/kubectl --kubeconfig/)
  return api
}

interface Scene {
  readonly network: NodeNetwork
  readonly proxies: Program[]
  readonly api: Program
  readonly kubeconfig: string
}

async function grow({ network, proxies, api, kubeconfig }: Scene, count: number) {
  const before = { sent: network.sentBytes(api.pid), cpu: cpuMilliseconds(api.pid) }
  const added = count - proxies.length
  const costs: number[] = []
  while (proxies.length < count) {
    const missing = Math.min(startsAtOnce, count - proxies.length)
    const started = Array.from({ length: missing }, () =>
      startProxy(network.addNode(), proxies, kubeconfig),
    )
    const ready = started.map(async (proxy) => {
      await proxy.says(/"family":"IPv4".*SyncProxyRules complete/)
      costs.push(cpuMilliseconds(proxy.pid))
    })
    await Promise.all(ready)
  }
  return {
    apiMb: (network.sentBytes(api.pid) - before.sent) / added / 1e6,
    apiCpuMs: (cpuMilliseconds(api.pid) - before.cpu) / added,
    cpuMs: summarize(costs).p50,
  }
}

function startProxy(node: string, proxies: Program[], kubeconfig: string): Program {
  const proxy = new Program(node, 'cli/main.js', [
    ...['--kubeconfig', kubeconfig, '--hostname-override', `node-${proxies.length}`],
    ...['--proxy-mode', 'nftables', '--proxy-mode-fallback', 'none'],
    ...['--cluster-cidr', '10.244.0.0/16'],
  ])
  proxies.push(proxy)
  return proxy
}

async function steady(network: NodeNetwork, proxies: readonly Program[], api: Program) {
  // Work after the first rules, such as collecting garbage, is no part of a change.
  await delay(5000)
  const look = () => ({
    at: performance.now(),
    sent: network.sentBytes(api.pid),
    api: cpuMilliseconds(api.pid),
    proxies: proxies.reduce((sum, { pid }) => sum + cpuMilliseconds(pid), 0),
  })
  const before = look()
  await delay(seconds * 1000)
  const after = look()
  const ms = after.at - before.at
  return {
    connections: connectionsOf(api.pid),
    kbPerSecond: (after.sent - before.sent) / ms,
    apiCpu: ((after.api - before.api) / ms) * 100,
    proxyCpu: ((after.proxies - before.proxies) / ms / proxies.length) * 100,
    apiMib: residentMib(api.pid),
    proxyMib: summarize(proxies.map(({ pid }) => residentMib(pid))).p50,
  }
}

/** The number of established connections to the server. */
function connectionsOf(pid: number): number {
  const local = `:${port.toString(16).toUpperCase().padStart(4, '0')}`
  const established = '01'
  return readFileSync(`/proc/${pid}/net/tcp`, 'utf8')
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .filter(([, from, , state]) => from?.endsWith(local) && state === established).length
}

function resultsOf({ proxies, start, ...row }: Row): BenchResult[] {
  const at = `${proxies} proxies, ${services.toLocaleString('en-US')} Services x 10`
  const change = `${changesPerSecond} changes a second`
  return [
    { name: `${at}: sent to start one`, value: start.apiMb, unit: 'MB' },
    { name: `${at}: server's processor to start one`, value: start.apiCpuMs, unit: 'ms' },
    { name: `${at}: processor of a proxy that starts, median`, value: start.cpuMs, unit: 'ms' },
    { name: `${at}: connections`, value: row.connections, unit: '' },
    { name: `${at}: sent, ${change}`, value: row.kbPerSecond, unit: 'kB/s' },
    { name: `${at}: server's share of a core, ${change}`, value: row.apiCpu, unit: '%' },
    { name: `${at}: share of a core of one proxy, ${change}`, value: row.proxyCpu, unit: '%' },
    { name: `${at}: memory of the server`, value: row.apiMib, unit: 'MiB' },
    { name: `${at}: memory of one proxy, median`, value: row.proxyMib, unit: 'MiB' },
  ]
}
