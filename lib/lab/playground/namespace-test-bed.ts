import { join } from 'node:path'
import { createWorld, type World } from '../world/world.js'
import { forward, openBridge, type Bridge } from '../world/bridge.js'
import { NodeGauge } from './node-gauge.js'
import { namespaceLayout } from './namespace-layout.js'
import { backendPorts, places } from '../world/topology.js'
import { runProxy } from './proxy-process.js'
import type { TestBed } from './test-bed.js'
import type { Server } from 'node:net'
import type { Place } from '../world/topology.js'

/** Where the daemon on the node finds the API server. */
const apiPortOnNode = 6443

/** A small cluster of network namespaces. Needs root, of a user namespace at least. */
export async function buildInNamespaces(name: string, folder: string): Promise<TestBed> {
  const world = await createWorld({ name })
  const gauge = new NodeGauge(
    { metrics: 'http://127.0.0.1:10249', health: 'http://127.0.0.1:10256' },
    world.namespaces.node,
  )
  let door: Server | undefined
  let bridge: Bridge | undefined
  const protocols = world.hasSctp ? (['TCP', 'UDP', 'SCTP'] as const) : (['TCP', 'UDP'] as const)
  const testBed: TestBed = {
    layout: namespaceLayout,
    gauge,
    flow: (place, request) => world.agent(place).flow(request),
    serve: (place, backend) =>
      world.agent(place).serve({
        name: backend,
        addresses: namespaceLayout.addresses[place],
        ports: backendPorts,
        protocols,
      }),
    stopServing: (place) => world.agent(place).stopServing(),
    goDark: (place, isDark) => dropAll(world, place, isDark),
    // The API server lives outside of the namespaces; a socket file leads from the node to it.
    openApi: async ({ hostname, port }) => {
      const path = join(folder, 'api.sock')
      door = await forward({ path }, { host: hostname, port: Number(port) })
      bridge = await openBridge({
        namespace: world.namespaces.node,
        from: { port: apiPortOnNode },
        to: { path },
      })
      return `http://127.0.0.1:${apiPortOnNode}`
    },
    startProxy: (args, onLine) => runProxy(world, args, onLine),
    close: async () => {
      await Promise.all([bridge?.close(), gauge.close()])
      door?.close()
      await world.close()
    },
  }
  try {
    // Every place of a new world has servers. Here only pods have them.
    await Promise.all(places.map((place) => testBed.stopServing(place)))
    return testBed
  } catch (error) {
    await testBed.close()
    throw error
  }
}

async function dropAll(world: World, place: Place, isDark: boolean): Promise<void> {
  for (const program of ['iptables', 'ip6tables']) {
    await world.exec(place, [program, isDark ? '-A' : '-D', 'INPUT', '-j', 'DROP'])
  }
}
