/** A pod of a cgroup that makes so many connections. Usage: count-client.js JSON */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { encodeAddress } from '../../lib/kernel/sockets/socket-address.js'
import { exchange } from './connection-load.js'
import { RawLoop } from './raw-loop.js'

export interface CountOrder {
  readonly cgroup: string
  readonly ip: string
  readonly port: number
  readonly connections: number
  readonly atOnce: number
}

export interface CountResult {
  readonly good: number
  readonly failed: number
  readonly seconds: number
}

function count(loop: RawLoop, { cgroup, ip, port, connections, atOnce }: CountOrder): CountResult {
  writeFileSync(join(cgroup, 'cgroup.procs'), '0')
  const load = { loop, target: encodeAddress({ ip, port }), seconds: 0, n: atOnce }
  let [started, good, failed] = [0, 0, 0]
  const next = () => {
    if (started === connections) return
    started++
    exchange(load, (_, ok) => {
      if (ok) good++
      else failed++
      next()
    })
  }
  const began = performance.now()
  for (let index = 0; index < atOnce; index++) next()
  while (good + failed < connections) loop.turn(100)
  return { good, failed, seconds: (performance.now() - began) / 1000 }
}

const loop = await RawLoop.load()
const result = count(loop, JSON.parse(process.argv[2] ?? '') as CountOrder)
process.stdout.write(`${JSON.stringify(result)}\n`)
process.exit(0)
