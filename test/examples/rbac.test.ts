import { rm } from 'node:fs/promises'
import { once } from 'node:events'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { createFaultyApi } from '../support/faulty-api.js'
import { runProxy } from '../support/program.js'
import { openBridge } from '../../lib/lab/world/bridge.js'
import { addressOf } from '../../lib/lab/world/topology.js'
import { nftables, skip, stopping, withProxyWorld } from '../e2e/proxy-world.js'
import { grantsIn, guardedServer, rightText } from '../support/rights.js'
import { until } from '../support/until.js'

const file = fileURLToPath(new URL('../../../examples/kubernetes/base/rbac.yaml', import.meta.url))
const grants = grantsIn(file)
const busyPort = 32_000

t.test('RB01: the ClusterRole grants what the daemon asks for, and nothing else', { skip }, (t) =>
  withProxyWorld('rbac', async ({ world }) => {
    const api = createFaultyApi()
    const stop = new AbortController()
    const running = api.run(stop.signal)
    const url = await api.listening()
    const { server, used, refused } = guardedServer(url, grants)
    const path = join(tmpdir(), `rbac-${process.pid}.sock`)
    server.listen(path)
    await once(server, 'listening')
    const namespace = world.namespaces.node
    const bridge = await openBridge({ namespace, from: { port: 6443 }, to: { path } })
    try {
      api.put({
        apiVersion: 'v1',
        kind: 'Node',
        metadata: { name: 'node-1' },
        status: { addresses: [{ type: 'InternalIP', address: addressOf('node', 'IPv4') }] },
      })
      // A server of the node holds the health-check port, and an Event reports that.
      await world.agent('node').serve({
        name: 'node',
        addresses: [addressOf('node', 'IPv4')],
        ports: [busyPort],
        protocols: ['TCP'],
      })
      api.put({
        apiVersion: 'v1',
        kind: 'Service',
        metadata: { name: 'busy' },
        spec: {
          type: 'LoadBalancer',
          externalTrafficPolicy: 'Local',
          healthCheckNodePort: busyPort,
          ports: [{ port: 80 }],
        },
      })
      const proxy = runProxy(world, [...nftables, '--master', 'http://127.0.0.1:6443'])
      await stopping(proxy, async () => {
        const events = () => api.list({ apiVersion: 'events.k8s.io/v1', kind: 'Event' })
        await until('an Event about the Service', () =>
          events().some((event) => JSON.stringify(event).includes('busy')),
        )
        const kindsOf = (verb: string) => [...used].filter((of) => of.verb === verb).length
        await until('all watches', () => kindsOf('watch') >= 4 && api.faults.watches.size === 4)
        // After a failure the daemon lists, to learn the version of the server.
        api.faults.failWatches(500)
        await until('all lists', () => kindsOf('list') >= 4)
        t.same([...used].map(rightText).sort(), grants.map(rightText).sort())
        t.same([...refused], [])
      })
    } finally {
      await bridge.close()
      server.closeAllConnections()
      server.close()
      stop.abort()
      await running
      await rm(path, { force: true })
    }
  }),
)
