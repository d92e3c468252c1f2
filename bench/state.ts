import type { BenchResults } from './support/results.js'
import { RawCluster, rawSlice } from './support/raw-cluster.js'

const changes = 300

/** 10,000 Services x 10 endpoints: first build, one change, growth against 1,000, memory. */
export async function run(): Promise<BenchResults> {
  const small = await measure(1_000)
  const large = await measure(10_000)
  const rows = [small, large].map((row) => ({
    services: row.services,
    'first build ms': row.firstBuildMs.toFixed(0),
    'one change ms (median)': row.changeMs.toFixed(4),
    'process MiB': row.memoryMib.toFixed(0),
  }))
  console.table(rows)
  console.log(
    `growth of one change, 10,000 against 1,000: ${(large.changeMs / small.changeMs).toFixed(2)}x (target <= 1.5x)`,
  )
  console.log('targets at 10,000: first build <= 1500 ms, change <= 1 ms, memory <= 180 MiB')
  const at = '10,000 Services x 10'
  return [
    { name: `${at}: first build`, value: large.firstBuildMs, unit: 'ms', target: '<= 1500' },
    { name: `${at}: one change, median`, value: large.changeMs, unit: 'ms', target: '<= 1' },
    { name: `${at}: process`, value: large.memoryMib, unit: 'MiB', target: '<= 180' },
    {
      name: 'one change, 10,000 against 1,000',
      value: large.changeMs / small.changeMs,
      unit: 'x',
      target: '<= 1.5',
    },
  ]
}

async function measure(services: number) {
  const cluster = new RawCluster(['IPv4', 'IPv6'])
  const start = performance.now()
  await cluster.read(services)
  let state = cluster.take()
  const firstBuildMs = performance.now() - start
  const times: number[] = []
  for (let change = 0; change < changes; change++) {
    const raw = rawSlice((change * 37) % services, change + 1)
    const began = performance.now()
    cluster.readSlice(raw)
    const next = cluster.tracker.take()
    times.push(performance.now() - began)
    const changed = next.changed.get('IPv4')
    if (changed !== 1) throw new Error(`expected one change, got ${String(changed)}`)
    state = next.states[0] ?? state
  }
  if (state.services.size !== services) throw new Error('services are missing')
  times.sort((a, b) => a - b)
  return {
    services,
    firstBuildMs,
    changeMs: times[changes >> 1] ?? NaN,
    memoryMib: process.memoryUsage.rss() / 2 ** 20,
  }
}
