import { fileURLToPath } from 'node:url'
import { runCommand } from '../../lib/kernel/command.js'
import type { BenchResult } from './results.js'
import { ports } from './services.js'
import { summarize } from './summary.js'

/** A place to connect from, and the address that is asked there. */
export interface Way {
  readonly name: string
  /** The folder of a cgroup. */
  readonly cgroup?: string
  /** The name of a network namespace. */
  readonly namespace?: string
  readonly ip: string
}

export interface WaysOrder {
  readonly ways: readonly Way[]
  readonly rounds: number
  readonly batch: number
  readonly shortPort: number
  readonly echoPort: number
}

/** Milliseconds of one connection or message, by way: a number for each round. */
export interface WaysResult {
  readonly connections: Readonly<Record<string, readonly number[]>>
  readonly pingPongs: Readonly<Record<string, readonly number[]>>
}

/** Rounds are many and short, so that other work of the machine hardly changes the median. */
const rounds = 300
const batch = 40

/** What each way takes, as ratios to the first one in the same round. Targets are by the names of ways. */
export async function measureWays(
  ways: readonly Way[],
  { enter, targets }: { enter: readonly string[]; targets: Readonly<Record<string, string>> },
): Promise<readonly BenchResult[]> {
  const script = fileURLToPath(new URL('./ways-client.js', import.meta.url))
  const order: WaysOrder = { ways, rounds, batch, shortPort: ports.short[0], echoPort: ports.echo }
  const [command, ...argv] = [...enter, process.execPath, script, JSON.stringify(order)]
  const { stdout, stderr, code } = await runCommand(command, argv, { timeoutMs: 300_000 })
  if (code !== 0) throw new Error(`ways: ${stderr}`)
  const { connections, pingPongs } = JSON.parse(stdout) as WaysResult
  const base = ways[0]?.name ?? ''
  return Object.entries({ 'connect, request, close': connections, 'ping-pong': pingPongs }).flatMap(
    ([what, times]) => ways.map(({ name }) => ratio({ what, name, base, times }, targets[name])),
  )
}

function ratio(
  {
    what,
    name,
    base,
    times,
  }: Record<'what' | 'name' | 'base', string> & {
    readonly times: Readonly<Record<string, readonly number[]>>
  },
  target: string | undefined,
): BenchResult {
  const [all, first] = [times[name] ?? [], times[base] ?? []]
  const { p50 } = summarize(all.map((time, round) => time / (first[round] ?? NaN)))
  const microseconds = 1000 * summarize([...all]).p50
  console.log(what, name, p50.toFixed(3), `${microseconds.toFixed(1)} us`)
  return {
    ...{ name: `${what}, ${name} / ${base}`, value: p50, unit: 'x' },
    ...(target === undefined ? {} : { target }),
    note: `${microseconds.toFixed(0)} us`,
  }
}
