/** `area-main.js AREA FILE [PEER…]`: runs one benchmark and writes what it found to the file. */
import { loadavg } from 'node:os'
import { writeFileSync } from 'node:fs'
import { parsePeer, type Peer } from './peers.js'
import type { AreaReport } from './markdown.js'
import type { BenchResults } from './results.js'

interface Area {
  run(peers: readonly Peer[]): Promise<BenchResults>
}

const [, , area = '', file = '', ...peers] = process.argv
const load = loadavg()[0] ?? 0
const began = performance.now()
const benchmark = (await import(`../${area}.js`)) as Area
const results = await benchmark.run(peers.map(parsePeer))
const report: AreaReport = {
  area,
  date: new Date().toISOString(),
  seconds: Math.round((performance.now() - began) / 1000),
  load,
  results,
}
writeFileSync(file, JSON.stringify(report))
// Sockets of a peer or a namespace must not keep a finished benchmark alive.
process.exit(0)
