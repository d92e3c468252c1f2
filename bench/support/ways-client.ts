/**
 * A client that moves from one cgroup or network namespace to the other, to compare the costs of
 * ways. Usage: ways-client.js JSON
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { interest } from '../../lib/kernel/sockets/epoll.js'
import { addressFamilies } from '../../lib/kernel/addresses.js'
import { joinNetworkNamespace } from '../../lib/lab/world/namespaces.js'
import { encodeAddress } from '../../lib/kernel/sockets/socket-address.js'
import { exchange } from './connection-load.js'
import { edgeTriggered, RawLoop } from './raw-loop.js'
import { requestBytes } from './services.js'
import type { Way, WaysOrder, WaysResult } from './ways.js'

function enter({ cgroup, namespace }: Way): void {
  if (cgroup !== undefined) writeFileSync(join(cgroup, 'cgroup.procs'), '0')
  if (namespace !== undefined) joinNetworkNamespace(namespace)
}

function measureWays(loop: RawLoop, order: WaysOrder): WaysResult {
  const connections: Record<string, number[]> = {}
  const pingPongs: Record<string, number[]> = {}
  // The first round only warms up.
  for (let round = -1; round < order.rounds; round++) {
    for (const way of shuffled(order.ways)) {
      enter(way)
      const at = (port: number) => encodeAddress({ ip: way.ip, port })
      // A few connections warm this way up, and are not counted.
      connectBatch(loop, at(order.shortPort), 5)
      const connectMs = connectBatch(loop, at(order.shortPort), order.batch)
      const pingMs = pingPongBatch(loop, at(order.echoPort), order.batch)
      if (round < 0) continue
      ;(connections[way.name] ??= []).push(connectMs)
      ;(pingPongs[way.name] ??= []).push(pingMs)
    }
  }
  return { connections, pingPongs }
}

/** In a fixed order each way would pay for what the same other way left behind. */
const shuffled = <Item>(items: readonly Item[]): readonly Item[] =>
  items
    .map((item) => ({ item, place: Math.random() }))
    .sort((a, b) => a.place - b.place)
    .map(({ item }) => item)

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

const loop = await RawLoop.load()
const result = measureWays(loop, JSON.parse(process.argv[2] ?? '') as WaysOrder)
process.stdout.write(`${JSON.stringify(result)}\n`)
process.exit(0)
