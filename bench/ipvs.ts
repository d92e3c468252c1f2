import { fileURLToPath } from 'node:url'
import { quoted, runInUml, umlSkip } from '../test/support/uml.js'

const inside = fileURLToPath(new URL('./support/ipvs-inside.js', import.meta.url))

/** ipvs mode at 500 and 5,000 Services x 10, in User Mode Linux: only the ratios mean something. */
export async function run(): Promise<void> {
  if (umlSkip) {
    console.log(`left out: ${umlSkip}`)
    return
  }
  const command = `${quoted(process.execPath)} ${quoted(inside)}`
  const timeoutMs = 900_000
  const onLine = (line: string) => console.log(line)
  const { code } = await runInUml(command, { timeoutMs, memory: '2G', onLine })
  if (code !== 0) throw new Error(`the benchmark ended with code ${code}`)
}
