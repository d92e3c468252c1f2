import t from 'tap'
import type { Server } from 'node:http'
import { pause } from '../../lib/async.js'
import { ClientConnections } from '../../lib/observe/client-connections.js'
import { ServiceHealth } from '../../lib/observe/service-health.js'
import { until } from '../support/until.js'

/** Counts the ports that are opened. */
class OpenedPorts extends ClientConnections {
  count = 0

  override watch(server: Server): void {
    this.count++
    super.watch(server)
  }
}

/** Counts how often somebody goes through all entries. */
class LookedAt<K, V> extends Map<K, V> {
  looks = 0

  override [Symbol.iterator](): MapIterator<[K, V]> {
    this.looks++
    return super[Symbol.iterator]()
  }
}

t.test('H11: many health-check ports open while other work runs', async (t) => {
  const clients = new OpenedPorts()
  const servers = new ServiceHealth({
    isHealthy: () => true,
    failed: (_target, message) => t.fail(message),
    retryMs: 5000,
    sleep: () => Promise.resolve(),
    clients,
  })
  const targets = new LookedAt(
    Array.from({ length: 40 }, (_, index) => {
      const name = `web-${index}`
      return [`d/${name}`, { namespace: 'd', name, port: 0, localEndpoints: { IPv4: 1 } }]
    }),
  )
  servers.set(targets, ['127.0.0.1'])
  const stop = new AbortController()
  const running = servers.run(stop.signal)
  await new Promise(setImmediate)
  t.ok(clients.count < 40, `${clients.count} of 40 are open after a turn of the event loop`)
  await until('all ports are open', () => clients.count === 40)
  for (let sync = 0; sync < 5; sync++) {
    servers.set(targets, ['127.0.0.1'])
    await new Promise(setImmediate)
  }
  t.equal(targets.looks, 1, 'syncs that change no port do not look at all of them')
  stop.abort()
  await running
})

t.test('H13: ports leave descriptors for the rest of the process', async (t) => {
  const failures: string[] = []
  const recovered: string[] = []
  const servers = new ServiceHealth({
    isHealthy: () => true,
    failed: ({ name }, message) => failures.push(`${name}: ${message}`),
    recovered: ({ name }) => recovered.push(name),
    retryMs: 5000,
    sleep: pause,
    portsMax: 2,
  })
  const targets = new Map(
    ['one', 'two', 'three'].map((name) => [
      `d/${name}`,
      { namespace: 'd', name, port: 0, localEndpoints: { IPv4: 1 } },
    ]),
  )
  servers.set(targets, ['127.0.0.1'])
  const stop = new AbortController()
  const running = servers.run(stop.signal)
  await until('the third port is refused', () => failures.length === 1)
  t.match(failures, [/^three: other ports have all .*raise its limit/])
  servers.set(new Map([...targets].slice(1)), ['127.0.0.1'])
  await until('the third port is open', () => recovered.length === 1)
  t.same(recovered, ['three'])
  t.equal(failures.length, 1)
  stop.abort()
  await running
})

t.test('H13: ports take descriptors of the mode, and give back all', async (t) => {
  const failures: string[] = []
  let left = 2
  const servers = new ServiceHealth({
    isHealthy: () => true,
    failed: ({ name }) => failures.push(name),
    retryMs: 5000,
    sleep: pause,
  })
  servers.share({
    tryListen: () => left > 0 && left-- > 0,
    stopListening: () => void left++,
  })
  const target = (name: string, port: number) =>
    [`d/${name}`, { namespace: 'd', name, port, localEndpoints: { IPv4: 1 } }] as const
  const stop = new AbortController()
  servers.set(new Map([target('absurd', 1e9), target('one', 0)]), ['127.0.0.1'])
  const running = servers.run(stop.signal)
  await until('one port is open', () => left === 1)
  t.same(failures, ['absurd'], 'a port that does not open gives its descriptor back')
  servers.set(new Map([target('two', 0), target('three', 0), target('four', 0)]), ['127.0.0.1'])
  await until('a port is refused', () => failures.length === 2)
  t.same(failures, ['absurd', 'four'])
  t.equal(left, 0)
  servers.set(new Map(), ['127.0.0.1'])
  await until('all are given back', () => left === 2)
  stop.abort()
  await running
})
