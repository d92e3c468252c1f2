import { fileURLToPath } from 'node:url'
import { quoted } from '../test/support/guest.js'
import { runInUml, umlSkip } from '../test/support/uml.js'
import { marker } from './support/ipvs-marker.js'
import type { BenchResult, BenchResults } from './support/results.js'

const inside = fileURLToPath(new URL('./support/ipvs-inside.js', import.meta.url))

/** ipvs mode at 500 and 5,000 Services x 10, in User Mode Linux: only the ratios mean something. */
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
  return results
}
