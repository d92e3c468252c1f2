/** Takes the listeners of the process that waits in a folder, says how many, and does nothing with them. */
import { Taker } from '../../lib/modes/userspace/takeover/taker.js'

// Whoever has nothing else to do does not wait for the answer.
setInterval(() => undefined, 1000)
const quiet = { debug() {}, info() {}, warn() {}, error() {} }
const given = await (await Taker.open(process.argv[2] ?? '', quiet)).take()
process.stdout.write(`${given.length}\n`)
