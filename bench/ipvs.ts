import { fileURLToPath } from 'node:url'
import { quoted } from '../test/support/guest.js'
import { ownKernel, runInUml, umlSkip } from '../test/support/uml.js'
import { busyGuest, guestSkip } from './support/guest-node.js'
import { marker } from './support/ipvs-marker.js'
import type { BenchResult, BenchResults } from './support/results.js'

const inside = fileURLToPath(new URL('./support/ipvs-inside.js', import.meta.url))

const busySeconds = Number(process.env['BENCH_BUSY_SECONDS'] ?? 60)

/** ipvs mode in User Mode Linux: of 500 and 5,000 Services x 10 only the ratios mean something. */
export async function run(): Promise<BenchResults> {
  if (umlSkip) {
    console.log(`left out: ${umlSkip}`)
    return []
  }
  const command = `${quoted(process.execPath)} ${quoted(inside)}`
  const timeoutMs = 900_000
  const results: BenchResult[] = []
  const onLine = (line: string) => {
    if (line.startsWith(marker)) results.push(JSON.parse(line.slice(marker.length)) as BenchResult)
    else console.log(line)
  }
  const { code } = await runInUml(command, { timeoutMs, memory: '2G', onLine })
  if (code !== 0) throw new Error(`the benchmark ended with code ${code}`)
  if (guestSkip) console.log(`left out: 20 changes a second: ${guestSkip}`)
  else for (const services of [1000, 5000]) results.push(...(await busyRows(services)))
  return results
}

/** The whole program while 20 slices a second change. */
async function busyRows(services: number): Promise<BenchResults> {
  const measured = await busyGuest({ services, seconds: busySeconds, warmSeconds: 30 })
  const name = `${services.toLocaleString('en-US')} Services x 10: change among 20 others a second`
  if (typeof measured === 'string') {
    return [{ name: `${name}, p50`, value: NaN, unit: 'ms', target: '<= 10', note: measured }]
  }
  const { p50Ms, p99Ms, longestMs } = measured
  console.log(`20 changes a second, ${services} Services:`, { p50Ms, p99Ms, longestMs })
  const kernel = ownKernel === undefined ? 'of Debian' : 'by scripts/uml-kernel'
  const note = `the node is a User Mode Linux ${kernel}, whose system calls take more than 30 times as long`
  return [
    { name: `${name}, p50`, value: p50Ms, unit: 'ms', target: '<= 10', note },
    { name: `${name}, p99`, value: p99Ms, unit: 'ms', target: '<= 30' },
    { name: `${name}, longest`, value: longestMs, unit: 'ms' },
  ]
}
