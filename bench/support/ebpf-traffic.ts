/**
 * A client of a pod that goes in and out of the cgroup whose sockets are translated, for the costs of
 * ways beside each other; or only so many connections. Usage: ebpf-traffic.js ways|count JSON
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { interest } from '../../lib/kernel/sockets/epoll.js'
import { addressFamilies } from '../../lib/kernel/addresses.js'
import { encodeAddress } from '../../lib/kernel/sockets/socket-address.js'
import { exchange } from './connection-load.js'
import { edgeTriggered, RawLoop } from './raw-loop.js'
import { requestBytes } from './services.js'

export interface Way {
  readonly name: string
  /** The folder of the cgroup of its sockets. */
  readonly cgroup: string
  readonly ip: string
}

export interface WaysOrder {
  readonly ways: readonly Way[]
  readonly rounds: number
  readonly batch: number
  readonly shortPort: number
  readonly echoPort: number
}

/** Milliseconds for one, by way: a number for each round. */
export interface WaysResult {
  readonly connections: Readonly<Record<string, readonly number[]>>
  readonly pingPongs: Readonly<Record<string, readonly number[]>>
}

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

const enter = (cgroup: string) => writeFileSync(join(cgroup, 'cgroup.procs'), '0')

function measureWays(loop: RawLoop, order: WaysOrder): WaysResult {
  const connections: Record<string, number[]> = {}
  const pingPongs: Record<string, number[]> = {}
  // The first round warms up whatever there is.
  for (let round = -1; round < order.rounds; round++) {
    // Nobody is always behind the same other one.
    const ways = order.ways.map((_, index) => order.ways[(index + round + 1) % order.ways.length])
    for (const way of ways) {
      if (!way) continue
      enter(way.cgroup)
      const at = (port: number) => encodeAddress({ ip: way.ip, port })
      const connectMs = connectBatch(loop, at(order.shortPort), order.batch)
      const pingMs = pingPongBatch(loop, at(order.echoPort), order.batch)
      if (round < 0) continue
      ;(connections[way.name] ??= []).push(connectMs)
      ;(pingPongs[way.name] ??= []).push(pingMs)
    }
  }
  return { connections, pingPongs }
}

/** One after the other: connect, ask, read, close. */
function connectBatch(loop: RawLoop, target: Uint8Array, batch: number): number {
  let done = 0
  const load = { loop, target, seconds: 0, n: 1 }
  const next = () =>
    exchange(load, (_, ok) => {
      if (!ok) throw new Error('a connection failed')
      done++
      if (done < batch) next()
    })
  const began = performance.now()
  next()
  while (done < batch) loop.turn(1000)
  return (performance.now() - began) / batch
}

function pingPongBatch(loop: RawLoop, target: Uint8Array, batch: number): number {
  const { sockets, buffer } = loop
  const fd = sockets.open(addressFamilies.IPv4, 'stream')
  sockets.connect(fd, target)
  let [isConnected, answers, began] = [false, 0, 0]
  const send = () => sockets.send(fd, buffer.address, requestBytes)
  loop.add(fd, edgeTriggered, (events) => {
    if (!isConnected) {
      isConnected = true
      sockets.noDelay(fd)
      began = performance.now()
      send()
      return
    }
    if ((events & interest.readable) === 0) return
    if (sockets.receive(fd, buffer.address, 4096) <= 0) return
    answers++
    if (answers < batch) send()
  })
  while (answers < batch) loop.turn(1000)
  const took = performance.now() - began
  loop.close(fd)
  return took / batch
}

function count(loop: RawLoop, { cgroup, ip, port, connections, atOnce }: CountOrder): CountResult {
  enter(cgroup)
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

const [, , what = '', json = ''] = process.argv
const loop = await RawLoop.load()
const order: unknown = JSON.parse(json)
const result =
  what === 'ways' ? measureWays(loop, order as WaysOrder) : count(loop, order as CountOrder)
process.stdout.write(`${JSON.stringify(result)}\n`)
process.exit(0)
