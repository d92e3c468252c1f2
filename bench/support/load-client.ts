/**
 * One load, reported as a line of JSON. Usage: load-client.js PATTERN ADDRESS PORT SECONDS N
 */
import { bulk } from './bulk-load.js'
import { connections, connectionsAtRate } from './connection-load.js'
import { datagrams } from './datagram-load.js'
import { idle } from './idle-load.js'
import { pingPong } from './ping-pong-load.js'
import { RawLoop } from './raw-loop.js'
import { encodeAddress } from '../../lib/kernel/sockets/socket-address.js'

/** The target, the duration, and a number whose meaning depends on the pattern. */
export interface Load {
  readonly loop: RawLoop
  readonly target: Uint8Array
  readonly seconds: number
  readonly n: number
}

const patterns: Readonly<Record<string, (load: Load) => object | Promise<object>>> = {
  connections,
  rate: connectionsAtRate,
  pingpong: pingPong,
  bulk,
  idle,
  udp: datagrams,
}

const [name = '', ip = '', port = '', seconds = '', n = ''] = process.argv.slice(2)
const pattern = patterns[name]
if (!pattern) throw new Error(`no load pattern ${name}; there are ${Object.keys(patterns).join()}`)
const loop = await RawLoop.load()
const target = encodeAddress({ ip, port: Number(port) })
const result = await pattern({ loop, target, seconds: Number(seconds), n: Number(n) })
process.stdout.write(`${JSON.stringify(result)}\n`)
process.exit(0)
