import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import { runCommand } from '../lib/kernel/command.js'
import { program } from '../test/support/program.js'
import {
  answers,
  inCluster,
  nodeName,
  proxyArguments,
  type BenchCluster,
} from './support/bench-cluster.js'
import { busy, oneByOne, type BusyCosts, type Running } from './support/busy-cluster.js'
import type { ChangeCosts } from './support/change-costs.js'
import { argumentsOf, type Peer } from './support/peers.js'
import { privateMib } from './support/process-usage.js'
import type { BenchResult, BenchResults } from './support/results.js'

const sizesOf = (mode: string) =>
  // In userspace mode each Service takes descriptors, and 20,000 is all that a process may have here.
  (process.env['BENCH_SERVICES'] ?? (mode === 'userspace' ? '1000,5000' : '1000,5000,20000'))
    .split(',')
    .map(Number)
/** Where p99 has a limit, one outlier of a busy machine must not be all that it says. */
const changesAt = (size: Size) =>
  Number(process.env['BENCH_CHANGES'] ?? (longestChange(size) === undefined ? 30 : 200))
const busySeconds = Number(process.env['BENCH_BUSY_SECONDS'] ?? 60)
const burstSeconds = Number(process.env['BENCH_BURST_SECONDS'] ?? 60)
const modes = (process.env['BENCH_MODES'] ?? 'nftables,iptables,ipvs,userspace').split(',')

/** The longest pause after a sync. After it a change is the first one of a quiet time. */
const quietMs = 1000

/** The program as the image has it. */
const ours: Peer = {
  name: 'ours',
  command: [process.execPath, program, ...proxyArguments('{kubeconfig}', '{mode}', '{node}')].join(
    ' ',
  ),
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
  const results: BenchResult[] = []
  for (const peer of modes.includes('nftables') ? [ours, ...peers] : []) {
    results.push(await handful(peer))
  }
  for (const mode of modes) {
    if (mode === 'ipvs' && (await runCommand('modprobe', ['ip_vs'])).code !== 0) {
      console.log('# left out: ipvs, because this kernel has no module ip_vs')
      continue
    }
    const [smallest = 0, ...others] = sizesOf(mode)
    for (const services of [smallest, ...others]) {
      let own: Measured | undefined
      for (const peer of [ours, ...peers]) {
        const withBurst = services === smallest && burstSeconds > 0
        const measured = await measure(peer, { mode, services, withBurst })
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
  /** The limit that our own program must keep. */
  readonly target?: Limit
}

type Limit = (at: Size) => string | undefined

interface Size {
  readonly mode: string
  readonly services: number
}

type Limits = Readonly<Record<string, Readonly<Record<number, number>>>>

/** Limits by mode and number of Services. */
function atMost(limits: Limits): Limit {
  return ({ mode, services }) => {
    const limit = limits[mode]?.[services]
    return limit === undefined ? undefined : `<= ${limit}`
  }
}

/**
 * 20 changes of this cost are 4.95 % of a core. The measured share has the changes of the probe,
 * too: up to five a second, since each waits for the one before.
 */
const perChangeMs = 2.475
const memoryLimits = { 1000: 85, 5000: 140, 20_000: 300 }
const longestChange = atMost({ nftables: { 20_000: 15 } })
const beside = (changes: string) => `change among ${changes} others a second`
const rows: readonly Row[] = [
  {
    what: 'start until the newest Service answers',
    unit: 'ms',
    read: (of) => of.startMs,
    target: atMost({ nftables: { 1000: 800, 5000: 2000, 20_000: 7000 } }),
  },
  {
    what: 'change until a connection lands there, p50',
    unit: 'ms',
    read: (of) => of.p50Ms,
    target: atMost({ nftables: { 20_000: 5 } }),
  },
  {
    what: 'change until a connection lands there, p99',
    unit: 'ms',
    read: (of) => of.p99Ms,
    target: longestChange,
  },
  {
    what: 'CPU a change',
    unit: 'ms',
    read: (of) => of.cpuMs,
    target: atMost({ iptables: { 5000: 120 } }),
  },
  {
    what: 'memory',
    unit: 'MiB',
    read: (of) => of.memoryMib,
    target: atMost({ nftables: memoryLimits, iptables: memoryLimits }),
  },
  {
    what: `${beside('20')}, p50`,
    unit: 'ms',
    read: (of) => of.busy.p50Ms,
    target: busyLimit(10),
  },
  {
    what: `${beside('20')}, p99`,
    unit: 'ms',
    read: (of) => of.busy.p99Ms,
    target: busyLimit(30),
  },
  {
    what: '20 changes a second: share of a core',
    unit: '%',
    read: (of) => of.busy.cpuShare,
  },
  {
    what: '20 changes a second: CPU a change',
    unit: 'ms',
    read: (of) => of.busy.cpuMs,
    target: atMost({ nftables: { 1000: perChangeMs, 5000: perChangeMs, 20_000: 3 } }),
  },
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

/** With one chain to write, iptables-nft takes 45 ms of a processor, so its changes wait for their turn. */
function busyLimit(ms: number): Limit {
  return ({ mode, services }) => {
    if (services > 5000) return undefined
    return `<= ${mode === 'iptables' ? 250 : ms}`
  }
}

interface Case extends Size {
  readonly name: string
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
    const limit = name === ours.name ? target?.({ mode, services }) : undefined
    const promise = limit === undefined ? {} : { target: limit }
    const note = ratio === undefined ? {} : { note: `${ratio.toPrecision(3)} of ours` }
    return [{ name: `${at}: ${what}`, value, unit, ...promise, ...note }]
  })
}

interface Task extends Size {
  /** Whether 1,000 changes a second are measured, too. */
  readonly withBurst: boolean
}

/** A text says why it could not be measured. */
function measure(peer: Peer, { withBurst, ...size }: Task): Promise<Measured | string> {
  return inClusterOf(peer, size, async (cluster, running, startMs) => {
    const { services } = size
    // Work after the first rules, such as cleaning up, is no part of a change.
    await delay(1500)
    const one = await oneByOne(cluster, running, { changes: changesAt(size), restMs: quietMs })
    if (typeof one === 'string') return one
    const task = { services, perSecond: 20, seconds: busySeconds, restMs: 200 }
    const steady = await busy(cluster, running, task)
    if (typeof steady === 'string') return steady
    const measured = { startMs, ...one, busy: steady }
    if (!withBurst) return measured
    const storm = { services, perSecond: 1000, seconds: burstSeconds, restMs: 500 }
    const burst = await busy(cluster, running, storm)
    return typeof burst === 'string' ? burst : { ...measured, burst }
  })
}

/** Memory that no other process shares, with a handful of Services. */
async function handful(peer: Peer): Promise<BenchResult> {
  const size = { mode: 'nftables', services: 5 }
  const value = await inClusterOf(peer, size, async (_cluster, { pid }) => {
    await delay(5000)
    return privateMib(pid)
  })
  const name = `${peer.name}, nftables, 5 Services x 10: private memory`
  console.log(`${name}:`, value)
  if (typeof value === 'string') return { name, value: NaN, unit: 'MiB', note: value }
  return { name, value, unit: 'MiB', ...(peer === ours ? { target: '<= 25' } : {}) }
}

type Act<T> = (cluster: BenchCluster, running: Running, startMs: number) => Promise<T | string>

/** Acts once the proxy's rules work. A text says why something could not be measured. */
function inClusterOf<T>(peer: Peer, { mode, services }: Size, act: Act<T>): Promise<T | string> {
  return inCluster(services, (cluster) => {
    const words = { kubeconfig: cluster.kubeconfig, node: nodeName, mode }
    return whileRunning(cluster, argumentsOf(peer.command, words), act)
  })
}

async function whileRunning<T>(
  cluster: BenchCluster,
  argv: readonly string[],
  act: Act<T>,
): Promise<T | string> {
  const { world } = cluster
  const began = performance.now()
  const child = spawn('ip', ['netns', 'exec', world.namespaces.node, ...argv], {
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let said = ''
  child.stderr.setEncoding('utf8').on('data', (text: string) => (said = (said + text).slice(-500)))
  const exited = once(child, 'exit')
  const running = { pid: child.pid ?? 0, isAlive: () => child.exitCode === null }
  try {
    const result = (await answers(world, 'pod-1', running.isAlive))
      ? await act(cluster, running, performance.now() - began)
      : 'no answer'
    return typeof result === 'string' ? `${result}; it said: ${said.trim()}` : result
  } finally {
    child.kill('SIGKILL')
    await exited
  }
}
