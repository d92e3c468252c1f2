import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { Rule, Table } from '../lib/kernel/nftables/model.js'
import { Nft, type RulesetWriter } from '../lib/kernel/nftables/nft.js'
import { openNfTables } from '../lib/kernel/nftables-netlink/nf-tables.js'
import { NftablesApplier } from '../lib/modes/nftables/apply.js'
import { knownByFamily } from '../lib/modes/known.js'
import { nftablesPlanner } from '../lib/modes/nftables/plan.js'
import { contextOf } from '../test/support/mode-context.js'
import { endpointsPerService, RawCluster, rawSlice } from './support/raw-cluster.js'
import { cpuMilliseconds } from './support/process-usage.js'
import type { ChangeCosts } from './support/change-costs.js'
import type { BenchResult, BenchResults } from './support/results.js'
import { summarize } from './support/summary.js'

/** A change replaces an endpoint, or changes their number. Past 16 the next size of map is used. */
const kinds = ['replaced', 'scaled', 'scaled past 16'] as const
type Kind = (typeof kinds)[number]

interface Row {
  readonly writer: 'nft' | 'netlink'
  readonly services: number
  readonly kind: Kind
  readonly changes: number
  /** Milliseconds between the starts of two changes; 0: one after the other. */
  readonly everyMs: number
  /** The number of changes before those that are measured: V8 makes code faster with time. */
  readonly warmUp: number
}

const warmUp = 2000

interface Measured extends ChangeCosts {
  /** The least any new rule costs here, see {@link bareRuleMs}. */
  readonly bareRuleMs: number
  /** The median of the last tenth of the changes, divided by that of the first tenth. */
  readonly drift: number
  /** p99 over p50 of {@link fixedWork} between the changes: how even this machine is. 0 without pauses. */
  readonly machineTail: number
}

/**
 * API objects to a programmed kernel, in a network namespace and a process of its own per row:
 * the start, then single endpoint changes. Times end when the kernel holds the change.
 */
export async function run(): Promise<BenchResults> {
  const row = (
    writer: Row['writer'],
    services: number,
    kind: Kind,
    changes: number,
    pace: Partial<Pick<Row, 'everyMs' | 'warmUp'>> = {},
  ): Row => ({ writer, services, kind, changes, everyMs: 0, warmUp: 0, ...pace })
  const rows: readonly Row[] = [
    row('nft', 5_000, 'replaced', 40),
    row('nft', 5_000, 'scaled', 40),
    row('netlink', 5_000, 'replaced', 300),
    row('netlink', 5_000, 'scaled', 300),
    ...[1_000, 10_000].flatMap((services) =>
      kinds.map((kind) => row('netlink', services, kind, 300, { warmUp })),
    ),
    ...(['replaced', 'scaled'] as const).flatMap((kind) =>
      [0, warmUp].map((before) => {
        return row('netlink', 5_000, kind, 1200, { everyMs: 50, warmUp: before })
      }),
    ),
  ]
  const results = rows.map((one) => ({ ...one, ...inNamespace(one) }))
  console.table(
    results.map((row) => ({
      writer: row.writer,
      'services x 10': row.services,
      endpoint: row.kind + paceOf(row),
      'start ms': row.startMs.toFixed(0),
      'change p50 ms': row.p50Ms.toFixed(2),
      'change p99 ms': row.p99Ms.toFixed(2),
      // With pauses the number would include the fixed work.
      'CPU per change ms': row.everyMs > 0 ? '' : row.cpuMs.toFixed(2),
      'p99 / p50': (row.p99Ms / row.p50Ms).toFixed(1),
      'fixed work': row.machineTail === 0 ? '' : row.machineTail.toFixed(1),
      drift: row.drift.toFixed(2),
      'bare rule ms': row.bareRuleMs.toFixed(2),
      'process MiB': row.memoryMib.toFixed(0),
    })),
  )
  console.log('fixed work: p99 / p50 of work that never changes, in the pauses between changes')
  console.log('bare rule: a rule with one match, in a chain that no rule leads to')
  await Promise.resolve()
  return [...results.flatMap(resultsOf), ...kinds.map((kind) => growthOf(results, kind))]
}

function growthOf(results: readonly (Row & Measured)[], kind: Kind): BenchResult {
  const [small, large] = [1_000, 10_000].map((services) =>
    results.find((one) => one.services === services && one.kind === kind),
  )
  return {
    name: `endpoint ${kind}, 10,000 against 1,000`,
    value: (large?.p50Ms ?? NaN) / (small?.p50Ms ?? NaN),
    unit: 'x',
    target: '<= 1.5',
  }
}

function paceOf({ everyMs, warmUp }: Row): string {
  if (everyMs === 0) return ''
  return `, ${1000 / everyMs}/s for ${warmUp > 0 ? 'a later minute' : 'the first minute'}`
}

/** The targets are for 5,000 Services. */
function resultsOf(row: Row & Measured): BenchResults {
  const services = row.services.toLocaleString('en-US')
  const at = `${row.writer}, ${services} Services x 10, endpoint ${row.kind}${paceOf(row)}`
  const change = `${at}: change`
  if (row.everyMs > 0) {
    return [
      { name: `${change} p50`, value: row.p50Ms, unit: 'ms' },
      {
        name: `${change} p99`,
        value: row.p99Ms,
        unit: 'ms',
        target: '<= 15',
        note: `in the pauses, fixed work: ${row.machineTail.toFixed(1)}x`,
      },
      { name: `${change}, last tenth / first`, value: row.drift, unit: 'x' },
    ]
  }
  const isPromised = row.services === 5_000
  const changeTarget = row.writer === 'nft' ? '<= 50' : '<= 15'
  const promised = (target: string) => (isPromised ? { target } : {})
  return [
    { name: `${at}: start`, value: row.startMs, unit: 'ms', ...promised('<= 3500') },
    { name: `${change} p50`, value: row.p50Ms, unit: 'ms', ...promised(changeTarget) },
    { name: `${change} p99`, value: row.p99Ms, unit: 'ms' },
    { name: `${at}: CPU a change`, value: row.cpuMs, unit: 'ms', ...promised(changeTarget) },
    { name: `${at}: process`, value: row.memoryMib, unit: 'MiB', ...promised('<= 220') },
    { name: `${at}: a bare rule`, value: row.bareRuleMs, unit: 'ms' },
  ]
}

function inNamespace(row: Row): Measured {
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
        env: { ...process.env, BENCH_ROW: JSON.stringify(row) },
        stdio: ['ignore', 'pipe', 'inherit'],
      },
    )
    return JSON.parse(output) as Measured
  } finally {
    execFileSync('ip', ['netns', 'delete', name])
  }
}

/** Runs in the inner process: measures the row in the environment, prints one line of JSON. */
export async function measureAndPrint(): Promise<void> {
  const row: unknown = JSON.parse(process.env['BENCH_ROW'] ?? '{}')
  console.log(JSON.stringify(await measure(row as Row)))
}

async function measure(row: Row): Promise<Measured> {
  const { services, changes } = row
  const cluster = new RawCluster()
  await cluster.read(services)
  const writer: RulesetWriter = row.writer === 'nft' ? new Nft() : openNfTables()
  const applier = new NftablesApplier({
    known: knownByFamily(),
    writer,
    now: () => performance.now(),
    context: contextOf().context,
  })
  const planner = nftablesPlanner({ masqueradeAll: false, masqueradeBit: 14 })
  const first = planner(cluster.take())
  await applier.apply(first)
  // Since the process began: loading, parsing, planning, programming.
  const startMs = performance.now()

  const times: number[] = []
  const fixed: number[] = []
  let cpuBefore = cpuMilliseconds(process.pid)
  let firstAt = performance.now()
  for (let change = 0; change < row.warmUp + changes; change++) {
    if (change === row.warmUp) {
      times.length = 0
      cpuBefore = cpuMilliseconds(process.pid)
      firstAt = performance.now()
    }
    const raw = changedSlice(row.kind, (change * 37) % services, change)
    const early = firstAt + (change - row.warmUp) * row.everyMs - performance.now()
    if (early > 0) {
      await sleep(early / 2)
      const tookMs = fixedWork()
      fixed.push(tookMs)
      await sleep(Math.max(0, early / 2 - tookMs))
    } else if (change % 20 === 0) await sleep(0)
    const began = performance.now()
    cluster.readSlice(raw)
    await applier.apply(planner(cluster.take()))
    times.push(performance.now() - began)
  }
  const cpu = (cpuMilliseconds(process.pid) - cpuBefore) / changes
  const tenth = Math.ceil(times.length / 10)
  const drift = medianOf(times.slice(-tenth)) / medianOf(times.slice(0, tenth))
  const { p50: p50Ms, p99: p99Ms } = summarize(times)
  const machine = summarize(fixed)
  const memoryMib = process.memoryUsage.rss() / 2 ** 20
  const bare = await bareRuleMs(writer, first.table)
  return {
    bareRuleMs: bare,
    startMs,
    p50Ms,
    p99Ms,
    cpuMs: cpu,
    memoryMib,
    drift,
    machineTail: fixed.length === 0 ? 0 : machine.p99 / machine.p50,
  }
}

/** Calls of the kernel and work on text, about as long as a change. Returns the milliseconds. */
function fixedWork(): number {
  const began = performance.now()
  for (let round = 0; round < 20; round++) {
    JSON.parse(JSON.stringify(readFileSync('/proc/self/stat', 'utf8').split(' ')))
  }
  return performance.now() - began
}

/** The milliseconds that the kernel takes for the smallest rule. */
async function bareRuleMs(writer: RulesetWriter, table: Table): Promise<number> {
  const chain = { name: 'unused', rules: [] }
  const rule: Rule = { statements: [{ kind: 'protocol', protocol: 'tcp' }] }
  await writer.commit({ table, commands: [{ do: 'add-chain', chain }] })
  const times: number[] = []
  for (let round = 0; round < 50; round++) {
    const began = performance.now()
    await writer.commit({ table, commands: [{ do: 'add-rule', chain: chain.name, rule }] })
    times.push(performance.now() - began)
  }
  return medianOf(times)
}

const medianOf = (times: readonly number[]) =>
  [...times].sort((a, b) => a - b)[Math.floor(times.length / 2)] ?? NaN

function changedSlice(kind: Kind, index: number, change: number): unknown {
  if (kind === 'replaced') return rawSlice(index, change + 1)
  const by = 1 + (change % 3)
  return rawSlice(index, 0, kind === 'scaled' ? endpointsPerService - by : 16 + by)
}
