import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { runCommand } from '../lib/kernel/command.js'
import { answers, inCluster, nodeName, type BenchCluster } from './support/bench-cluster.js'
import { busy, oneByOne, type BusyCosts } from './support/busy-cluster.js'
import type { ChangeCosts } from './support/change-costs.js'
import { argumentsOf, type Peer } from './support/peers.js'
import type { BenchResult, BenchResults } from './support/results.js'

const sizes = (process.env['BENCH_SERVICES'] ?? '1000,5000').split(',').map(Number)
const changes = Number(process.env['BENCH_CHANGES'] ?? 30)
const busySeconds = Number(process.env['BENCH_BUSY_SECONDS'] ?? 60)
const burstSeconds = Number(process.env['BENCH_BURST_SECONDS'] ?? 60)
const modes = (process.env['BENCH_MODES'] ?? 'nftables,iptables,userspace').split(',')

/** The longest pause after a sync. After it a change is the first one of a quiet time. */
const quietMs = 1000

const project = fileURLToPath(new URL('../../', import.meta.url))
const folder = join(project, 'build/node')

/** The program as the image has it. */
const ours: Peer = {
  name: 'ours',
  command:
    `${process.execPath} ${join(folder, 'build/lib/cli/main.js')}` +
    ' --kubeconfig {kubeconfig} --hostname-override {node} --proxy-mode {mode}' +
    ' --proxy-mode-fallback none --cluster-cidr 10.244.0.0/16',
}

interface Measured extends ChangeCosts {
  /** 20 slices of other Services change a second. */
  readonly busy: BusyCosts
  /** The same with 1,000 slices a second; only for the first number of Services. */
  readonly burst?: BusyCosts
}

/**
 * Measures whole programs, as a node runs them with an API server: the time from the start of the
 * process, or from the change of an EndpointSlice, until a real connection arrives where it should.
 */
export async function run(peers: readonly Peer[] = []): Promise<BenchResults> {
  const bundling = await runCommand(process.execPath, [join(project, 'scripts/bundle.mjs'), folder])
  if (bundling.code !== 0) throw new Error(bundling.stderr)
  const results: BenchResult[] = []
  for (const mode of modes) {
    for (const services of sizes) {
      let own: Measured | undefined
      for (const peer of [ours, ...peers]) {
        const measured = await measure(peer, mode, services)
        console.log(`${peer.name}, ${mode}, ${services} Services:`, measured)
        results.push(...resultsOf({ name: peer.name, mode, services }, measured, own))
        if (peer === ours && typeof measured !== 'string') own = measured
      }
    }
  }
  return results
}

interface Row {
  readonly what: string
  readonly unit: string
  readonly read: (measured: Measured) => number | undefined
  /** The limit that our own program must keep, by mode. */
  readonly target?: (mode: string) => string
}

const beside = (changes: string) => `change among ${changes} others a second`
const rows: readonly Row[] = [
  { what: 'start until the newest Service answers', unit: 'ms', read: (of) => of.startMs },
  { what: 'change until a connection lands there, p50', unit: 'ms', read: (of) => of.p50Ms },
  { what: 'change until a connection lands there, p99', unit: 'ms', read: (of) => of.p99Ms },
  { what: 'CPU a change', unit: 'ms', read: (of) => of.cpuMs },
  { what: 'memory', unit: 'MiB', read: (of) => of.memoryMib },
  {
    what: `${beside('20')}, p50`,
    unit: 'ms',
    read: (of) => of.busy.p50Ms,
    target: (mode) => (mode === 'iptables' ? '<= 250' : '<= 10'),
  },
  {
    what: `${beside('20')}, p99`,
    unit: 'ms',
    read: (of) => of.busy.p99Ms,
    target: (mode) => (mode === 'iptables' ? '<= 250' : '<= 30'),
  },
  { what: '20 changes a second: share of a core', unit: '%', read: (of) => of.busy.cpuShare },
  {
    what: `${beside('1,000')}, p50`,
    unit: 'ms',
    read: (of) => of.burst?.p50Ms,
  },
  {
    what: '1,000 changes a second: an endpoint that is gone gets connections for at most',
    unit: 'ms',
    read: (of) => of.burst?.longestMs,
    target: () => '<= 1000',
  },
  {
    what: '1,000 changes a second: share of a core',
    unit: '%',
    read: (of) => of.burst?.cpuShare,
    target: () => '<= 40',
  },
  {
    what: '1,000 changes a second: memory at the end, of that after a quarter of the time',
    unit: 'x',
    read: (of) => of.burst?.growth,
  },
]

interface Case {
  readonly name: string
  readonly mode: string
  readonly services: number
}

function resultsOf(
  { name, mode, services }: Case,
  measured: Measured | string,
  own: Measured | undefined,
): BenchResults {
  const at = `${name}, ${mode}, ${services.toLocaleString('en-US')} Services x 10`
  if (typeof measured === 'string') {
    return [{ name: `${at}: ${rows[0]?.what ?? ''}`, value: NaN, unit: 'ms', note: measured }]
  }
  return rows.flatMap(({ what, unit, read, target }): BenchResults => {
    const value = read(measured)
    if (value === undefined) return []
    const ratio = own && value / (read(own) ?? NaN)
    const promise = name === ours.name && target ? { target: target(mode) } : {}
    const note = ratio === undefined ? {} : { note: `${ratio.toPrecision(3)} of ours` }
    return [{ name: `${at}: ${what}`, value, unit, ...promise, ...note }]
  })
}

/** A text says why it could not be measured. */
function measure(peer: Peer, mode: string, services: number): Promise<Measured | string> {
  return inCluster(services, (cluster) =>
    watch(
      cluster,
      services,
      argumentsOf(peer.command, { kubeconfig: cluster.kubeconfig, node: nodeName, mode }),
    ),
  )
}

async function watch(
  cluster: BenchCluster,
  services: number,
  argv: readonly string[],
): Promise<Measured | string> {
  const { world } = cluster
  const began = performance.now()
  const child = spawn('ip', ['netns', 'exec', world.namespaces.node, ...argv], {
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let said = ''
  child.stderr.setEncoding('utf8').on('data', (text: string) => (said = (said + text).slice(-500)))
  const exited = once(child, 'exit')
  const running = { pid: child.pid ?? 0, isAlive: () => child.exitCode === null }
  const failed = (what: string) => `${what}; it said: ${said.trim()}`
  try {
    if (!(await answers(world, 'pod-1', running.isAlive))) return failed('no answer')
    const startMs = performance.now() - began
    // Work after the first rules, such as cleaning up, is no part of a change.
    await delay(1500)
    const one = await oneByOne(cluster, running, { changes, restMs: quietMs })
    if (typeof one === 'string') return failed(one)
    const task = { services, perSecond: 20, seconds: busySeconds, restMs: 200 }
    const steady = await busy(cluster, running, task)
    if (typeof steady === 'string') return failed(steady)
    const measured = { startMs, ...one, busy: steady }
    if (services !== sizes[0] || burstSeconds === 0) return measured
    const storm = { services, perSecond: 1000, seconds: burstSeconds, restMs: 500 }
    const burst = await busy(cluster, running, storm)
    return typeof burst === 'string' ? failed(burst) : { ...measured, burst }
  } finally {
    child.kill('SIGKILL')
    await exited
  }
}
