import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { parsePeer, argumentsOf, type Peer } from './peers.js'
import { answers, inCluster, nodeName, type BenchCluster } from './bench-cluster.js'
import { oneByOne } from './busy-cluster.js'
import type { BenchResult, BenchResults } from './results.js'

const services = Number(process.env['BENCH_SERVICES'] ?? 5000)
const changes = Number(process.env['BENCH_CHANGES'] ?? 20)
const readerCounts = [0, 1, 5]
const ours = parsePeer(
  `ours=${process.execPath} ${fileURLToPath(new URL('../../lib/cli/main.js', import.meta.url))}` +
    ' --kubeconfig {kubeconfig} --hostname-override {node} --proxy-mode {mode}' +
    ' --proxy-mode-fallback none --cluster-cidr 10.244.0.0/16' +
    ' --dashboard-address 127.0.0.1:8383',
)

/** The cost of open pages: how soon connections follow a change while pages read the dashboard. */
export async function pageReaders(peers: readonly Peer[]): Promise<BenchResults> {
  const results: BenchResult[] = []
  for (const peer of [ours, ...peers]) {
    results.push(...(await inCluster(services, (cluster) => watched(peer, cluster))))
  }
  return results
}

async function watched(peer: Peer, cluster: BenchCluster): Promise<BenchResults> {
  const { world, kubeconfig } = cluster
  const argv = argumentsOf(peer.command, { kubeconfig, node: nodeName, mode: 'nftables' })
  const child = spawn('ip', ['netns', 'exec', world.namespaces.node, ...argv], { stdio: 'ignore' })
  const exited = once(child, 'exit')
  const isAlive = () => child.exitCode === null
  try {
    if (!(await answers(world, 'pod-1', isAlive))) throw new Error(`${peer.name} does not answer`)
    await delay(1500)
    const results: BenchResult[] = []
    let alone = NaN
    for (const readers of readerCounts) {
      const { p50Ms, p99Ms, cpuMs, healthMs } = await withReaders(cluster, readers, () =>
        follow(cluster, child.pid ?? 0, isAlive),
      )
      if (readers === 0) alone = p50Ms
      const at = `${peer.name}, ${services.toLocaleString('en-US')} Services, ${readers} pages open`
      const target =
        peer === ours && readers > 0 ? { target: `<= ${(1.2 * alone).toFixed(2)}` } : {}
      results.push(
        {
          name: `${at}: change until a connection lands there, p50`,
          value: p50Ms,
          unit: 'ms',
          ...target,
        },
        { name: `${at}: the same, p99`, value: p99Ms, unit: 'ms' },
        { name: `${at}: CPU a change`, value: cpuMs, unit: 'ms' },
        { name: `${at}: slowest answer of /livez`, value: healthMs, unit: 'ms' },
      )
      console.log(at, { p50Ms, p99Ms, cpuMs, healthMs })
    }
    return results
  } finally {
    child.kill('SIGKILL')
    await exited
  }
}

async function follow(cluster: BenchCluster, pid: number, isAlive: () => boolean) {
  // A user looks at a change for about as long.
  const costs = await oneByOne(cluster, { pid, isAlive }, { changes, restMs: 300 })
  if (typeof costs === 'string') throw new Error(costs)
  return costs
}

/** Reads the page like so many browsers while `act` runs, and times the health server. */
async function withReaders<T>(
  { world }: BenchCluster,
  readers: number,
  act: () => Promise<T>,
): Promise<T & { readonly healthMs: number }> {
  const argv = [process.execPath, '-e', reading, String(readers)]
  const child = spawn('ip', ['netns', 'exec', world.namespaces.node, ...argv], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  let said = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => (said += text))
  const exited = once(child, 'exit')
  try {
    while (!said.includes('open') && child.exitCode === null) await delay(20)
    const found = await act()
    child.stdin.end()
    await exited
    return { ...found, healthMs: Number(/slowest (\S+)/.exec(said)?.[1]) }
  } finally {
    child.kill('SIGKILL')
    await exited
  }
}

/** Runs on the node until its input ends. */
const reading = `
const http = require('http')
const readers = Number(process.argv[1])
let open = 0
let slowest = 0
const opened = () => { if (++open > readers) console.log('open') }
const health = () => {
  const began = performance.now()
  const done = () => {
    slowest = Math.max(slowest, performance.now() - began)
    setTimeout(health, 100)
  }
  http.get('http://127.0.0.1:10256/livez', (reply) => reply.resume().on('end', done)).on('error', done)
}
for (let reader = 0; reader < readers; reader++) {
  http.get('http://127.0.0.1:8383/events', (reply) => {
    reply.once('data', opened).on('data', () => undefined)
  }).on('error', opened)
}
opened()
health()
process.stdin.resume().on('end', () => { console.log('slowest', slowest); process.exit() })
`
