import { execFileSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { loadavg } from 'node:os'

const program = fileURLToPath(new URL('./rows/iptables.js', import.meta.url))

/**
 * Start, one endpoint change with 20 others a second going on, CPU and memory, on both backends.
 * `change` is the time from the change in the tracker to the end of the restore. CPU is that of
 * this process and its children; the times are worth something on a quiet machine only.
 */
export function run(): Promise<void> {
  const rows = []
  for (const [backend, services] of [
    ['nft', 1000],
    ['nft', 5000],
    ['legacy', 1000],
    ['legacy', 5000],
  ] as const) {
    const argv = [program, backend, String(services)]
    const row = JSON.parse(execFileSync(process.execPath, argv, { encoding: 'utf8' })) as object
    rows.push({ ...row, load: loadavg()[0]?.toFixed(1) })
  }
  console.table(rows)
  console.log('targets, nft with 5,000 x 10: start <= 5000 ms, change p50 <= 100, p99 <= 250,')
  console.log('CPU <= 120 ms a change, process + child <= 220 MiB; legacy with 1,000: p50 <= 40 ms')
  return Promise.resolve()
}
