import { setTimeout as delay } from 'node:timers/promises'
import type { FlowResult } from '../../../lib/lab/world/agent-protocol.js'
import { families } from '../../../lib/lab/world/topology.js'
import { nothingLost, type FaultGroup } from '../fault.js'
import { filler, fillerAddress, fillerName, serviceAddress, slicesOf } from '../cluster.js'
import type { Stage } from '../stage.js'
import { endpoint, rawService, rawSlice } from '../../state/objects.js'

/** How many Services one fault adds, each with a slice in both families. */
const manyServices = 5_000

/** The faults of the API server and of its objects. */
export const apiFaults: FaultGroup = {
  title: 'The API server',
  lane: 'api',
  faults: [
    {
      name: 'API server killed, back after 3 s',
      target: nothingLost(12),
      inject: async ({ api }) => {
        await api.kill()
        await delay(3_000)
        await api.start()
        return undefined
      },
    },
    {
      name: 'API server stopped (SIGSTOP) for 5 s',
      target: nothingLost(8),
      inject: async ({ api }) => {
        api.signal('SIGSTOP')
        await delay(5_000)
        api.signal('SIGCONT')
        return undefined
      },
    },
    {
      name: 'Connections to the API server fall silent, without an end',
      target: nothingLost(50),
      inject: async ({ api }) => {
        await api.tell({ op: 'relay', behaviour: 'frozen' })
        return undefined
      },
    },
    {
      name: 'API server answers garbage for 5 s',
      target: nothingLost(35),
      inject: async ({ api }) => {
        await api.tell({ op: 'relay', behaviour: 'garbage' })
        await delay(5_000)
        await api.tell({ op: 'relay', behaviour: 'relay' })
        return undefined
      },
    },
    {
      name: 'API server answers 500 for 5 s',
      target: nothingLost(35),
      inject: async ({ api }) => {
        await api.tell({ op: 'fail', fault: { effect: { answer: 500 } } })
        await api.tell({ op: 'watches', how: 'cut' })
        await delay(5_000)
        await api.tell({ op: 'fail', fault: undefined })
        return undefined
      },
    },
    {
      name: 'API server answers 429 with Retry-After: 3600, once',
      target: nothingLost(75),
      inject: async ({ api }) => {
        const effect = { answer: 429, retryAfterSeconds: 3_600 } as const
        await api.tell({ op: 'fail', fault: { effect, times: 4 } })
        await api.tell({ op: 'watches', how: 'cut' })
        return undefined
      },
    },
    {
      name: 'Watches end with 410 Gone',
      target: nothingLost(8),
      inject: async ({ api }) => {
        await api.tell({ op: 'watches', how: 'expire' })
        return undefined
      },
    },
    {
      name: 'History compacted while the watches are cut',
      target: nothingLost(8),
      inject: async (stage) => {
        const { api } = stage
        await api.tell({ op: 'watches', how: 'cut' })
        await stage.change()
        await api.tell({ op: 'compact' })
        return undefined
      },
    },
    {
      name: 'State restored: other versions, watches ended',
      target: nothingLost(8),
      inject: async ({ api }) => {
        await api.tell({ op: 'restore' })
        return undefined
      },
    },
    {
      name: 'State restored from a backup: the server is at an older version',
      target: nothingLost(8),
      inject: async ({ api }) => {
        await api.kill()
        await api.start('--first-version=1000')
        return undefined
      },
    },
    {
      name: 'Compacted, restored and killed in turn, with 10,000 slices that change',
      stage: { services: manyServices },
      target: nothingLost(20),
      inject: async (stage) => {
        await loseHistory(stage)
        return undefined
      },
    },
    {
      name: 'Watches cut every 100 ms',
      target: nothingLost(15),
      inject: async ({ api }) => {
        await api.tell({ op: 'cut-every', ms: 100 })
        return () => api.tell({ op: 'cut-every', ms: 0 })
      },
    },
    {
      name: 'Hostile objects',
      target: nothingLost(5),
      inject: async ({ api }) => {
        for (const [collection, object] of hostileObjects) {
          await api.tell({ op: 'put-unchecked', collection, object })
        }
        return undefined
      },
    },
    {
      name: 'Clients that connect before their Service exists',
      target: nothingLost(5),
      inject: async (stage) => {
        await connectEarly(stage)
        return undefined
      },
    },
    {
      name: 'A Service whose endpoint is its own address, and clients of it',
      target: nothingLost(5),
      inject: async (stage) => {
        const { api, world, daemon } = stage
        const { IPv4 } = serviceAddress(ownNumber)
        await api.put(
          rawService({ name: 'own', spec: { clusterIP: IPv4, clusterIPs: [IPv4] } }),
          rawSlice({
            name: 'own-1',
            service: 'own',
            endpoints: [endpoint(IPv4)],
            ports: [{ name: 'http', port: 80 }],
          }),
        )
        const request = { protocol: 'TCP', host: IPv4, port: 80, timeoutMs: 500 } as const
        for (let count = 0; count < 20; count++) await world.agent('client-pod').flow(request)
        // The list is empty if another fault has ended the process meanwhile.
        const { stdout } = await world.exec('node', ['ls', `/proc/${daemon.pid}/fd`])
        const open = stdout.split('\n').length
        if (open > 1_000) {
          const sockets = await world.exec('node', ['ss', '-tuanpH'])
          throw new Error(`the daemon has ${open} descriptors open:\n${sockets.stdout}`)
        }
        return undefined
      },
    },
  ],
}

const ownNumber = 20

/** Loses history while slices change, so that the new list differs from the known objects. */
async function loseHistory({ api, random }: Stage): Promise<void> {
  const losses = [
    async () => {
      await api.tell({ op: 'watches', how: 'cut' })
      await api.tell({ op: 'compact' })
    },
    () => api.tell({ op: 'restore' }),
    async () => {
      await api.kill()
      await api.start()
    },
  ]
  for (const lose of [...losses, ...losses]) {
    for (const end = performance.now() + 3_000; performance.now() < end;) {
      const index = Math.floor(random() * manyServices)
      await api.put(...slicesOf(fillerName(index), random() < 0.5 ? ['pod-1'] : ['pod-3']))
      await delay(40)
    }
    await lose()
  }
}

/** The number of a filler that no stage has otherwise. */
const late = 5_001
const earlyPlaces = ['client-pod', 'node'] as const
const attemptTimeout = 'net.netfilter.nf_conntrack_tcp_timeout_syn_sent'

/**
 * Connects before the Service is known. The first packets get no answer; the kernel sends the next
 * ones one and three seconds later, and they must reach the Service. The connections last longer
 * than the kernel's entries for the first packets.
 */
async function connectEarly(stage: Stage): Promise<void> {
  const { api, world, mode, daemon } = stage
  const { pid } = daemon
  // The endpoints come first, because a Service without endpoints refuses.
  const [service, ...slices] = filler(late, ['pod-1'])
  await api.put(...slices)
  // The change that this waits for comes later by the same watch, so the slices have arrived.
  await stage.recovered(performance.now())
  const before = await stage.node('sysctl', '-n', attemptTimeout)
  await stage.node('sysctl', '-qw', `${attemptTimeout}=5`)
  const clients = families.flatMap((family) => earlyPlaces.map((place) => ({ family, place })))
  const idOf = (family: string) => `early ${family}`
  const connecting = clients.map(({ family, place }) =>
    world.agent(place).flow({
      ...{ protocol: 'TCP', host: fillerAddress(late)[family], port: 80 },
      ...{ timeoutMs: 30_000, fromPort: 0, keepAs: idOf(family) },
    }),
  )
  await delay(300)
  if (service) await api.put(service)
  const failed = (when: string, results: readonly (FlowResult | undefined)[]) =>
    results.flatMap((result, index) => {
      if (result?.outcome === 'reply') return []
      const { family, place } = clients[index] ?? {}
      return [`${place} by ${family} ${when}: ${result?.error ?? result?.outcome}`]
    })
  const lost = failed(
    'at first',
    (await Promise.all(connecting)).map(([result]) => result),
  )
  for (let seconds = 1; seconds <= 10 && lost.length === 0; seconds++) {
    await delay(1_000)
    const asked = clients.map(({ family, place }) => world.agent(place).send(idOf(family), 5_000))
    lost.push(...failed(`${seconds} s later`, await Promise.all(asked)))
  }
  for (const { family, place } of clients) await world.agent(place).forget(idOf(family))
  await api.remove(...filler(late, []))
  await stage.node('sysctl', '-qw', `${attemptTimeout}=${before.trim()}`)
  // Connections of userspace mode end with its process, which another fault may have killed.
  const isExcused = mode === 'userspace' && daemon.pid !== pid
  if (lost.length > 0 && !isExcused) throw new Error(lost.join('; '))
}

const slices = 'endpointslices.discovery.k8s.io'
const endpointAt = (address: unknown) => ({ addresses: [address], conditions: { ready: true } })

/** Objects that a real server refuses, and objects that only look harmless. */
const hostileObjects: readonly (readonly [collection: string, object: object])[] = [
  ['services', rawService({ name: 'no-ports', spec: { ports: 'none' } })],
  [
    'services',
    rawService({ name: 'bad-ip', spec: { clusterIP: '10.96.0.10; reboot', clusterIPs: [] } }),
  ],
  [
    'services',
    rawService({
      name: 'thief',
      spec: {
        clusterIP: '10.96.9.9',
        clusterIPs: ['10.96.9.9'],
        externalIPs: ['10.96.0.10', 'fd00:10:96::a', '127.0.0.1'],
      },
    }),
  ],
  [
    'services',
    rawService({
      name: 'bad-port',
      spec: {
        clusterIP: '10.96.9.10',
        clusterIPs: ['10.96.9.10'],
        ports: [{ name: '"; flush ruleset', protocol: 'TCP', port: 99_999 }, { port: -1 }, null],
      },
    }),
  ],
  ['services', { apiVersion: 'v1', kind: 'Service', metadata: { namespace: 'default' } }],
  [
    'services',
    {
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { name: 'hollow', namespace: 'default' },
      spec: null,
    },
  ],
  [
    slices,
    rawSlice({
      name: 'no-list',
      service: 'steady',
      endpoints: [null, 42, {}] as unknown as object[],
    }),
  ],
  [
    slices,
    rawSlice({
      name: 'own',
      service: 'no-ports',
      endpoints: [
        endpointAt('127.0.0.1'),
        endpointAt('0.0.0.0'),
        endpointAt('169.254.169.254'),
        endpointAt('10.96.0.10'),
        endpointAt('x'),
      ],
    }),
  ],
  [slices, rawSlice({ name: 'other-family', service: 'steady', addressType: 'IPv7' })],
]
