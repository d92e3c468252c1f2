import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import {
  lane,
  nodeAddresses,
  runLoad,
  serverAddress,
  startIn,
  stop,
  withLane,
} from './support/lane.js'
import { cpuMilliseconds, residentMib } from './support/process-usage.js'
import type { BenchResult, BenchResults } from './support/results.js'
import { ports } from './support/services.js'

type Contestant = 'direct' | 'haproxy' | 'splice' | 'net' | 'changing'

interface Pattern {
  readonly title: string
  readonly load: string
  readonly port: number
  readonly n: number
  /** What is compared, and whether more is better. */
  readonly metric: string
  readonly unit: string
  readonly contestants: readonly Contestant[]
  /** What is handed on: a contestant as a ratio of another, and what was promised of it. */
  readonly ratios: readonly (readonly [Contestant, Contestant, string?])[]
  /** What the issue asks for. */
  readonly target: string
}

const everybody: readonly Contestant[] = ['direct', 'haproxy', 'splice', 'net']
const patterns: readonly Pattern[] = [
  {
    title: 'new connections, 64 at a time',
    ratios: [
      ['splice', 'haproxy', '>= 1'],
      ['net', 'haproxy', '>= 0.5'],
    ],
    target: 'splice >= 1.0 of haproxy, net >= 0.5',
    load: 'connections',
    port: ports.short[0],
    n: 64,
    metric: 'perSecond',
    unit: '/s',
    contestants: everybody,
  },
  {
    title: 'new connections, 3,000 a second: p99',
    ratios: [
      ['splice', 'haproxy', '<= 1'],
      ['changing', 'splice', '<= 1.2'],
    ],
    target:
      'splice <= 1 of haproxy; changing (1,000 other Services, twice a second) <= 1.2 of splice',
    load: 'rate',
    port: ports.short[0],
    n: 3000,
    metric: 'p99',
    unit: 'ms',
    contestants: [...everybody, 'changing'],
  },
  {
    title: 'ping-pong, 64 clients',
    ratios: [['splice', 'haproxy', '>= 0.9']],
    target: 'splice >= 0.9 of haproxy',
    load: 'pingpong',
    port: ports.echo,
    n: 64,
    metric: 'perSecond',
    unit: '/s',
    contestants: everybody,
  },
  {
    title: 'ping-pong, 1 client',
    ratios: [['splice', 'haproxy']],
    target: 'none',
    load: 'pingpong',
    port: ports.echo,
    n: 1,
    metric: 'perSecond',
    unit: '/s',
    contestants: everybody,
  },
  {
    title: 'one bulk stream up',
    ratios: [['splice', 'haproxy', '>= 1.8']],
    target: 'splice >= 1.8 of haproxy',
    load: 'bulk',
    port: ports.sink,
    n: 1,
    metric: 'gigabitsPerSecond',
    unit: 'Gbit/s',
    contestants: everybody,
  },
  {
    title: 'one bulk stream down',
    ratios: [['splice', 'haproxy', '>= 1.8']],
    target: 'splice >= 1.8 of haproxy',
    load: 'bulk',
    port: ports.source,
    n: 1,
    metric: 'gigabitsPerSecond',
    unit: 'Gbit/s',
    contestants: everybody,
  },
  {
    title: 'UDP echo, 64 clients',
    ratios: [['splice', 'direct', '>= 0.5']],
    target: 'splice >= 0.5 of direct',
    load: 'udp',
    port: ports.udp,
    n: 64,
    metric: 'perSecond',
    unit: '/s',
    contestants: ['direct', 'splice', 'net'],
  },
]

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
        return child.pid ?? 0
      }
      const pids = {
        splice: await proxy('splice', nodeAddresses.splice),
        net: await proxy('net', nodeAddresses.net),
        changing: 0,
        haproxy: 0,
      }
      const config = join(directory, 'haproxy.cfg')
      writeFileSync(config, haproxyConfig())
      const haproxy = await startIn(lane.node, ['haproxy', '-db', '-f', config], false)
      children.push(haproxy)
      pids.haproxy = haproxy.pid ?? 0
      await new Promise((resolve) => setTimeout(resolve, 500))
      for (const pattern of patterns) {
        if (only && !pattern.title.includes(only)) continue
        // Only now and only as long as it is measured, as it is never idle.
        if (pattern.contestants.includes('changing')) {
          pids.changing = await proxy('splice', nodeAddresses.changing, '2', '1000')
        }
        all.push(...(await compare(pattern, pids)))
        const changing = children.find(({ pid }) => pid === pids.changing)
        if (changing) await stop(changing)
      }
      if (!only || only === 'idle') all.push(...(await idleMemory(pids)))
    } finally {
      for (const child of children) await stop(child)
      rmSync(directory, { recursive: true })
    }
  })
  return all
}

type Pids = Readonly<Record<'splice' | 'net' | 'haproxy' | 'changing', number>>

async function compare(pattern: Pattern, pids: Pids): Promise<BenchResults> {
  const results = new Map<
    Contestant,
    { values: number[]; p99: number[]; cpuMs: number[]; failed: number }
  >()
  for (let round = 0; round < rounds; round++) {
    for (const contestant of pattern.contestants) {
      const address = contestant === 'direct' ? serverAddress : nodeAddresses[contestant]
      const pid = contestant === 'direct' ? 0 : pids[contestant]
      const before = pid ? cpuMilliseconds(pid) : 0
      const report = await runLoad([pattern.load, address, pattern.port, seconds, pattern.n])
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

async function idleMemory(pids: Pids): Promise<BenchResults> {
  const rows: Record<string, object> = {}
  const results: BenchResult[] = []
  for (const name of ['haproxy', 'splice', 'net'] as const) {
    const before = residentMib(pids[name])
    const script = new URL('./support/load-client.js', import.meta.url).pathname
    const argv = [
      process.execPath,
      script,
      'idle',
      nodeAddresses[name],
      String(ports.echo),
      '0',
      String(idleConnections),
    ]
    const client = await startIn(lane.clients, argv)
    const mib = residentMib(pids[name]) - before
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
