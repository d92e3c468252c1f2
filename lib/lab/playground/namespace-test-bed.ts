import { join } from 'node:path'
import { withoutPins } from '../world/cgroups.js'
import { createWorld, type World, type WorldOptions } from '../world/world.js'
import { forward, openBridge, type Bridge } from '../world/bridge.js'
import { apiPortOnNode } from './cluster-objects.js'
import { NodeGauge } from './node-gauge.js'
import { namespaceLayout, type PodRoom } from './cluster-layout.js'
import { furtherAddresses, podPlaces, places, uplinkName } from '../world/topology.js'
import { proxyCommand, runProxy } from './proxy-process.js'
import { ipBatch } from '../world/namespaces.js'
import type { BuildTestBed, TestBed } from './test-bed.js'
import type { Server } from 'node:net'
import type { Place } from '../world/topology.js'

export interface NamespaceOptions extends Pick<WorldOptions, 'withCgroup'> {
  /** What starts the daemon; absent: this program. */
  readonly daemon?: readonly string[]
}

/** Small clusters of network namespaces. Need root, of a user namespace at least. */
export const inNamespaces =
  (options: NamespaceOptions): BuildTestBed =>
  (name, folder) =>
    build(name, folder, options)

export const buildInNamespaces = inNamespaces({})

/** The same, where sockets of the node's pods have a cgroup, which ebpf mode needs. */
export const buildWithCgroup = inNamespaces({ withCgroup: true })

async function build(
  name: string,
  folder: string,
  { daemon = proxyCommand([]), ...options }: NamespaceOptions,
): Promise<TestBed> {
  const world = await createWorld({ name, ...options })
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
    serve: ({ place, addresses }, server, answered) =>
      world.agent(place).serve({ ...server, addresses, protocols }, answered),
    stopServing: ({ place }, name) => world.agent(place).stopServing(name),
    goDark: (room, isDark) => dropAll(world, room, isDark),
    // The API server lives outside of the namespaces; a socket file leads from the node to it.
    openApi: async ({ hostname, port }) => {
      const path = join(folder, 'api.sock')
      door = await forward({ path }, { host: hostname, port: Number(port) })
      bridge = await openBridge({
        namespace: world.namespaces.node,
        // Pods find it behind the Service kubernetes, and the daemon at 127.0.0.1.
        from: { port: apiPortOnNode, host: '0.0.0.0' },
        to: { path },
      })
      return `http://127.0.0.1:${apiPortOnNode}`
    },
    startProxy: proxyStarter(world, daemon),
    close: async () => {
      await Promise.all([bridge?.close(), gauge.close()])
      door?.close()
      await world.close()
    },
  }
  try {
    // Every place of a new world has servers. Here only pods have them.
    await Promise.all(places.map((place) => world.agent(place).stopServing()))
    await makeRoom(world)
    return testBed
  } catch (error) {
    await testBed.close()
    throw error
  }
}

function proxyStarter(world: World, daemon: readonly string[]): TestBed['startProxy'] {
  const command = [...(world.cgroup === undefined ? [] : withoutPins), ...daemon]
  const flags = ['--userspace-source-address', 'hide', ...socketFlags(world)]
  return (args, onLine) => runProxy(world, [...flags, ...args], onLine, command)
}

/** Nothing is pinned: a playground that is killed leaves no program behind. */
const socketFlags = ({ cgroup }: World): readonly string[] =>
  cgroup === undefined ? [] : ['--ebpf-cgroup', cgroup, '--ebpf-bpffs', '']

async function dropAll(
  world: World,
  { place, addresses }: PodRoom,
  isDark: boolean,
): Promise<void> {
  for (const address of addresses) {
    const program = address.includes(':') ? 'ip6tables' : 'iptables'
    await world.exec(place, [program, isDark ? '-A' : '-D', 'INPUT', '-d', address, '-j', 'DROP'])
  }
}

/** Adds the addresses of pods that share a place, and routes to them on the second node. */
async function makeRoom(world: World): Promise<void> {
  const lines = (place: Place, of: (address: string, bits: number) => string): readonly string[] =>
    furtherAddresses(place).flatMap(({ IPv4, IPv6 }) => [of(IPv4, 32), of(IPv6, 128)])
  const far = podPlaces['node-2']
  await Promise.all(
    [...podPlaces['node-1'], ...far].map((place) => {
      const added = lines(place, (address, bits) => {
        // IPv6 sends from the newest address, unless that has no preferred lifetime. So programs
        // send from the address of the place.
        const dad = bits === 128 ? ' nodad preferred_lft 0' : ''
        return `address add ${address}/${bits} dev ${uplinkName}${dad}`
      })
      return ipBatch(added, world.namespaces[place])
    }),
  )
  const routes = far.flatMap((place) =>
    lines(place, (address, bits) => `route add ${address}/${bits} dev v${place}`),
  )
  await ipBatch(routes, world.namespaces['node-2'])
}
