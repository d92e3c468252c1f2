import type { ChildProcess } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import {
  controlCongestion,
  lane,
  nodeAddresses,
  runLoad,
  serverAddress,
  startIn,
  stop,
  usualControl,
  withLane,
} from './support/lane.js'
import { cpuMilliseconds, residentMib } from './support/process-usage.js'
import type { BenchResult, BenchResults } from './support/results.js'
import { ports } from './support/services.js'
import { patterns, type Contestant, type Pattern } from './support/userspace-patterns.js'

const seconds = Number(process.env['BENCH_SECONDS'] ?? 2)
const rounds = Number(process.env['BENCH_ROUNDS'] ?? 3)
const only = process.env['BENCH_ONLY']
const idleConnections = 9000

/** The userspace data paths beside direct access and HAProxy, in turns, in one run. */
export async function run(): Promise<BenchResults> {
  const all: BenchResult[] = []
  await withLane(async () => {
    const script = (name: string) => new URL(`./support/${name}.js`, import.meta.url).pathname
    const children = [
      await startIn(lane.servers, [process.execPath, script('load-server'), serverAddress]),
    ]
    const directory = mkdtempSync(join(tmpdir(), 'bench-userspace-'))
    try {
      const proxy = async (name: 'splice' | 'net', address: string, ...more: string[]) => {
        const argv = [process.execPath, script('proxy-under-test'), name, '2', address]
        const child = await startIn(lane.node, [...argv, serverAddress, ...more])
        children.push(child)
        return child
      }
      const splice = await proxy('splice', nodeAddresses.splice)
      const net = await proxy('net', nodeAddresses.net)
      // Syncs of a live proxy are a second apart, too (minSyncPeriod).
      const crowded = await proxy('splice', nodeAddresses.crowded, '1', '1000')
      const pauseOrGoOn = () => crowded.stdin?.write('\n')
      pauseOrGoOn()
      const config = join(directory, 'haproxy.cfg')
      writeFileSync(config, haproxyConfig())
      const haproxy = await startIn(lane.node, ['haproxy', '-db', '-f', config], false)
      children.push(haproxy)
      const contestants: Contestants = {
        direct: { address: serverAddress },
        haproxy: { address: nodeAddresses.haproxy, proxy: haproxy },
        splice: { address: nodeAddresses.splice, proxy: splice },
        net: { address: nodeAddresses.net, proxy: net },
        resting: { address: nodeAddresses.crowded, proxy: crowded },
        changing: {
          address: nodeAddresses.crowded,
          proxy: crowded,
          begin: pauseOrGoOn,
          end: pauseOrGoOn,
        },
      }
      await new Promise((resolve) => setTimeout(resolve, 500))
      for (const pattern of patterns) {
        if (only && !pattern.title.includes(only)) continue
        all.push(...(await measure(pattern, contestants)))
      }
      if (!only || only === 'idle') all.push(...(await idleMemory(contestants)))
    } finally {
      for (const child of children) await stop(child)
      rmSync(directory, { recursive: true })
    }
  })
  return all
}

type Contestants = Readonly<
  Record<
    Contestant,
    {
      readonly address: string
      readonly proxy?: ChildProcess
      /** Called around each measurement. */
      readonly begin?: () => void
      readonly end?: () => void
    }
  >
>

async function measure(pattern: Pattern, contestants: Contestants): Promise<BenchResults> {
  const { congestionControl, title } = pattern
  if (!congestionControl) return compare(pattern, contestants)
  try {
    await controlCongestion(congestionControl)
  } catch (error) {
    console.log(`\n${title}: skipped, as this machine does not allow it: ${String(error)}`)
    return []
  }
  const results = await compare(pattern, contestants)
  await controlCongestion(usualControl)
  return results
}

async function compare(pattern: Pattern, contestants: Contestants): Promise<BenchResults> {
  const results = new Map<
    Contestant,
    { values: number[]; p99: number[]; cpuMs: number[]; failed: number }
  >()
  for (let round = 0; round < rounds * (pattern.times ?? 1); round++) {
    for (const contestant of pattern.contestants) {
      const { address, proxy, begin, end } = contestants[contestant]
      const pid = proxy?.pid ?? 0
      begin?.()
      const before = pid ? cpuMilliseconds(pid) : 0
      const report = await runLoad([pattern.load, address, pattern.port, seconds, pattern.n])
      end?.()
      const row = results.get(contestant) ?? { values: [], p99: [], cpuMs: [], failed: 0 }
      results.set(contestant, row)
      row.values.push(report[pattern.metric] ?? NaN)
      row.p99.push(report['p99'] ?? NaN)
      row.failed += (report['failed'] ?? 0) + (report['lost'] ?? 0)
      if (pid) row.cpuMs.push(cpuMilliseconds(pid) - before)
    }
  }
  console.log(`\n${pattern.title} (target: ${pattern.target})`)
  const value = (contestant: Contestant) => median(results.get(contestant)?.values ?? [])
  console.table(
    Object.fromEntries(
      [...results].map(([contestant, row]) => [
        contestant,
        {
          [pattern.unit]: round3(median(row.values)),
          'of direct': round3(value(contestant) / value('direct')),
          'of haproxy': round3(value(contestant) / value('haproxy')),
          'p99 ms': round3(median(row.p99)),
          'proxy CPU s/s': round3(median(row.cpuMs) / 1000 / seconds),
          failed: row.failed,
        },
      ]),
    ),
  )
  return [
    ...pattern.ratios.map(([contestant, peer, target]) => ({
      name: `${pattern.title}: ${contestant} against ${peer}`,
      value: value(contestant) / value(peer),
      unit: 'x',
      ...(target === undefined ? {} : { target }),
    })),
    ...[...results.keys()].map((contestant) => ({
      name: `${pattern.title}: ${contestant}`,
      value: value(contestant),
      unit: pattern.unit,
    })),
  ]
}

async function idleMemory(contestants: Contestants): Promise<BenchResults> {
  const rows: Record<string, object> = {}
  const results: BenchResult[] = []
  for (const name of ['haproxy', 'splice', 'net'] as const) {
    const { address, proxy } = contestants[name]
    const resident = () => residentMib(proxy?.pid ?? 0)
    const before = resident()
    const script = new URL('./support/load-client.js', import.meta.url).pathname
    const argv = [
      process.execPath,
      script,
      'idle',
      address,
      String(ports.echo),
      '0',
      String(idleConnections),
    ]
    const client = await startIn(lane.clients, argv)
    const mib = resident() - before
    rows[name] = {
      'MiB idle process': round3(before),
      'MiB more': round3(mib),
      'per 10,000': round3((mib * 10_000) / idleConnections),
    }
    results.push({
      name: `10,000 idle connections: ${name}`,
      value: (mib * 10_000) / idleConnections,
      unit: 'MiB',
      ...(name === 'splice' ? { target: '<= 60' } : {}),
    })
    await stop(client)
  }
  console.log(`\n${idleConnections} idle connections (target: splice <= 60 MiB more per 10,000)`)
  console.table(rows)
  return results
}

function haproxyConfig(): string {
  const listen = (port: number, targets: readonly number[]) =>
    [
      `listen p${port}`,
      `  bind ${nodeAddresses.haproxy}:${port}`,
      ...targets.map((target) => `  server s${target} ${serverAddress}:${target}`),
    ].join('\n')
  return [
    'global',
    '  maxconn 9500',
    'defaults',
    '  mode tcp',
    '  balance roundrobin',
    '  timeout connect 5s',
    '  timeout client 60s',
    '  timeout server 60s',
    listen(ports.short[0], ports.short),
    listen(ports.echo, [ports.echo]),
    listen(ports.sink, [ports.sink]),
    listen(ports.source, [ports.source]),
    '',
  ].join('\n')
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? NaN
}

function round3(value: number): number {
  return Number(value.toPrecision(3))
}
