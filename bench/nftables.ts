import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { Nft, type RulesetWriter } from '../lib/kernel/nftables/nft.js'
import { openNfTables } from '../lib/kernel/nftables-netlink/nf-tables.js'
import { NftablesApplier } from '../lib/modes/nftables/apply.js'
import { nftablesPlanner } from '../lib/modes/nftables/plan.js'
import { parseEndpointSlice } from '../lib/state/parse-endpoint-slice.js'
import { parseService } from '../lib/state/parse-service.js'
import { Tracker } from '../lib/state/tracker.js'
import type { BenchResults } from './support/results.js'

const endpointsPerService = 10

interface Measured {
  readonly startMs: number
  readonly p50Ms: number
  readonly p99Ms: number
  readonly cpuMs: number
  readonly memoryMib: number
}

/**
 * API objects to a programmed kernel, in a network namespace and a process of its own per row:
 * the start, then single endpoint changes. Times end when the kernel holds the change.
 */
export async function run(): Promise<BenchResults> {
  const rows = [
    ['nft', 5_000, 40],
    ['netlink', 5_000, 300],
    ['netlink', 1_000, 200],
    ['netlink', 10_000, 200],
  ] as const
  const results = rows.map(([writer, services, changes]) => ({
    writer,
    services,
    ...inNamespace(writer, services, changes),
  }))
  console.table(
    results.map((row) => ({
      writer: row.writer,
      'services x 10': row.services,
      'start ms': row.startMs.toFixed(0),
      'change p50 ms': row.p50Ms.toFixed(2),
      'change p99 ms': row.p99Ms.toFixed(2),
      'CPU per change ms': row.cpuMs.toFixed(2),
      'process MiB': row.memoryMib.toFixed(0),
    })),
  )
  const growth = (results[3]?.p50Ms ?? NaN) / (results[2]?.p50Ms ?? NaN)
  console.log(`growth of one change, 10,000 against 1,000: ${growth.toFixed(2)}x (target <= 1.5x)`)
  console.log('targets at 5,000: start <= 3500 ms, memory <= 220 MiB,')
  console.log('change p50 and CPU <= 50 ms through nft, <= 15 ms through netlink')
  await Promise.resolve()
  return [
    ...results.flatMap(resultsOf),
    { name: 'one change, 10,000 against 1,000', value: growth, unit: 'x', target: '<= 1.5' },
  ]
}

/** What was promised is for 5,000 Services. */
function resultsOf(row: Measured & { writer: string; services: number }): BenchResults {
  const at = `${row.writer}, ${row.services.toLocaleString('en-US')} Services x 10`
  const isPromised = row.services === 5_000
  const changeTarget = row.writer === 'nft' ? '<= 50' : '<= 15'
  const promised = (target: string) => (isPromised ? { target } : {})
  return [
    { name: `${at}: start`, value: row.startMs, unit: 'ms', ...promised('<= 3500') },
    { name: `${at}: change p50`, value: row.p50Ms, unit: 'ms', ...promised(changeTarget) },
    { name: `${at}: change p99`, value: row.p99Ms, unit: 'ms' },
    { name: `${at}: CPU a change`, value: row.cpuMs, unit: 'ms', ...promised(changeTarget) },
    { name: `${at}: process`, value: row.memoryMib, unit: 'MiB', ...promised('<= 220') },
  ]
}

function inNamespace(writer: string, services: number, changes: number): Measured {
  const name = `bench-nftables-${process.pid}`
  execFileSync('ip', ['netns', 'add', name])
  try {
    const file = fileURLToPath(import.meta.url)
    const code = `await (await import(${JSON.stringify(file)})).measureAndPrint()`
    const output = execFileSync(
      'ip',
      ['netns', 'exec', name, process.execPath, '--input-type=module', '-e', code],
      {
        encoding: 'utf8',
        env: { ...process.env, BENCH_ROW: JSON.stringify([writer, services, changes]) },
        stdio: ['ignore', 'pipe', 'inherit'],
      },
    )
    return JSON.parse(output) as Measured
  } finally {
    execFileSync('ip', ['netns', 'delete', name])
  }
}

/** The inner process: what {@link run} asked for by environment, as one line of JSON. */
export async function measureAndPrint(): Promise<void> {
  const row: unknown = JSON.parse(process.env['BENCH_ROW'] ?? '[]')
  const [writer, services, changes] = row as [string, number, number]
  console.log(JSON.stringify(await measure(writer, services, changes)))
}

async function measure(writerName: string, services: number, changes: number): Promise<Measured> {
  const tracker = new Tracker({
    families: ['IPv4'],
    nodeName: 'node-1',
    bindAddress: '0.0.0.0',
    nodePortAddresses: [],
    detectLocal: { mode: 'ClusterCIDR', cidrs: ['10.0.0.0/8'] },
    allowsExternalIps: true,
  })
  for (let index = 0; index < services; index++) {
    accept(parseService(rawService(index)), (value) => tracker.upsertService(value))
    accept(parseEndpointSlice(rawSlice(index, 0)), (value) => tracker.upsertEndpointSlice(value))
    if (index % 500 === 499) await new Promise((resolve) => setImmediate(resolve))
  }
  const writer: RulesetWriter = writerName === 'nft' ? new Nft() : openNfTables()
  const silent = () => undefined
  const applier = new NftablesApplier({
    writer,
    now: () => performance.now(),
    context: {
      log: { debug: silent, info: silent, warn: silent, error: silent },
      meter: { count: silent, gauge: silent, observe: silent, forget: silent },
      resync: silent,
    },
  })
  const planner = nftablesPlanner({ masqueradeAll: false, masqueradeBit: 14 })
  const take = () => {
    const [state] = tracker.take().states
    if (!state) throw new Error('no state')
    return planner(state)
  }
  let plan = take()
  await applier.apply(plan, undefined)
  // Since the process began: loading, parsing, planning, programming.
  const startMs = performance.now()

  const times: number[] = []
  const cpuBefore = cpuMs()
  for (let change = 0; change < changes; change++) {
    const raw = rawSlice((change * 37) % services, change + 1)
    const began = performance.now()
    accept(parseEndpointSlice(raw), (value) => tracker.upsertEndpointSlice(value))
    const next = take()
    await applier.apply(next, plan)
    times.push(performance.now() - began)
    plan = next
  }
  const cpu = (cpuMs() - cpuBefore) / changes
  times.sort((a, b) => a - b)
  const at = (share: number) => times[Math.floor(times.length * share)] ?? NaN
  const memoryMib = process.memoryUsage.rss() / 2 ** 20
  return { startMs, p50Ms: at(0.5), p99Ms: at(0.99), cpuMs: cpu, memoryMib }
}

/** Of this process and of the children it has waited for, in clock ticks of 10 ms. */
function cpuMs(): number {
  const fields = readFileSync('/proc/self/stat', 'utf8').split(') ')[1]?.split(' ') ?? []
  return [11, 12, 13, 14].reduce((sum, index) => sum + Number(fields[index]), 0) * 10
}

function accept<T>(parsed: { outcome: string; value?: T }, use: (value: T) => void): void {
  if (parsed.outcome !== 'accepted' || parsed.value === undefined) throw new Error('not accepted')
  use(parsed.value)
}

function rawService(index: number): unknown {
  return {
    metadata: { name: `service-${index}`, namespace: 'default' },
    spec: {
      type: 'ClusterIP',
      clusterIP: `172.16.${index >> 8}.${index & 255}`,
      ports: [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080 }],
    },
  }
}

function rawSlice(index: number, generation: number): unknown {
  return {
    metadata: {
      name: `service-${index}-abcde`,
      namespace: 'default',
      labels: { 'kubernetes.io/service-name': `service-${index}` },
    },
    addressType: 'IPv4',
    ports: [{ name: 'http', protocol: 'TCP', port: 8080 }],
    endpoints: Array.from({ length: endpointsPerService }, (_, endpoint) => {
      const number =
        index * endpointsPerService + endpoint + (endpoint === 0 ? generation << 17 : 0)
      return {
        addresses: [`10.${(number >> 16) & 255}.${(number >> 8) & 255}.${number & 255}`],
        conditions: { ready: true, serving: true, terminating: false },
        nodeName: `node-${index * endpointsPerService + endpoint < 1000 ? 1 : 2}`,
      }
    }),
  }
}
