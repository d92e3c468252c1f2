import { fileURLToPath } from 'node:url'
import { loadavg } from 'node:os'
import { runWatched } from './support/memory-peak.js'
import type { BenchResults } from './support/results.js'

const program = fileURLToPath(new URL('./rows/iptables.js', import.meta.url))

/**
 * Start, one endpoint change with 20 others a second going on, CPU and memory, on both backends.
 * `change` is the time from the change in the tracker to the end of the restore. CPU is that of
 * this process and its children; the times mean something only on a quiet machine.
 */
export async function run(): Promise<BenchResults> {
  const rows = []
  for (const [backend, services] of [
    ['nft', 1000],
    ['nft', 5000],
    ['legacy', 1000],
    ['legacy', 5000],
  ] as const) {
    const argv = [program, backend, String(services)]
    const { stdout, peakMib } = await runWatched(argv)
    const row = JSON.parse(stdout) as Omit<Row, 'with children, at most'>
    const most = peakMib.toFixed(0)
    rows.push({ ...row, 'with children, at most': most, load: loadavg()[0]?.toFixed(1) })
  }
  console.table(rows)
  console.log('targets, nft with 5,000 x 10: start <= 5000 ms, change p50 <= 100, p99 <= 250,')
  console.log('CPU <= 120 ms a change, process + child <= 220 MiB; legacy with 1,000: p50 <= 40 ms')
  return rows.flatMap(resultsOf)
}

/** As bench/rows/iptables.ts prints it. */
interface Row {
  readonly backend: 'nft' | 'legacy'
  readonly services: number
  readonly 'start ms': string
  readonly 'change p50 ms': string
  readonly 'p99 ms': string
  readonly 'CPU ms a change': string
  readonly 'process MiB': string
  /** Process and children at the same moment, the first sync included. */
  readonly 'with children, at most': string
}

/** What was promised: the nft backend at 5,000 Services, and one number of the legacy one. */
const targets: Readonly<Record<string, readonly (string | undefined)[]>> = {
  'nft 5000': ['<= 5000', '<= 100', '<= 250', '<= 120', '<= 220'],
  'legacy 1000': [undefined, '<= 40'],
}

function resultsOf(row: Row): BenchResults {
  const at = `${row.backend}, ${row.services.toLocaleString('en-US')} Services x 10`
  const numbers = [
    [`${at}: start`, Number(row['start ms']), 'ms'],
    [`${at}: change p50, 20 others a second`, Number(row['change p50 ms']), 'ms'],
    [`${at}: change p99, 20 others a second`, Number(row['p99 ms']), 'ms'],
    [`${at}: CPU a change`, Number(row['CPU ms a change']), 'ms'],
    [`${at}: process and children, at most`, Number(row['with children, at most']), 'MiB'],
  ] as const
  return numbers.map(([name, value, unit], index) => {
    const target = targets[`${row.backend} ${row.services}`]?.[index]
    return { name, value, unit, ...(target === undefined ? {} : { target }) }
  })
}
