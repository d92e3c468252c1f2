import t from 'tap'
import type { Server } from 'node:http'
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
