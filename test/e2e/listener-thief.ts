/**
 * Takes the listeners of the process that waits in a folder, prints their number, and keeps them.
 */
import { Taker } from '../../lib/modes/userspace/takeover/taker.js'

// The timer keeps the process alive until the answer comes.
setInterval(() => undefined, 1000)
const quiet = { debug() {}, info() {}, warn() {}, error() {} }
const given = await (await Taker.open(process.argv[2] ?? '', true, quiet)).take()
process.stdout.write(`${given.length}\n`)
