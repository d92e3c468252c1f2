import t from 'tap'
import { createApiServer } from '../../../lib/lab/apiserver/server.js'
import { onlyService, pathOf, stateOf } from '../../../lib/lab/playground/rules-view.js'
import { PageServer } from '../../../lib/page/server.js'
import { namespaceLayout } from '../../../lib/lab/playground/cluster-layout.js'
import { addressOf, type Place } from '../../../lib/lab/world/topology.js'
import { browserPath, hasBrowser, newPage, sharedBrowser } from './opened-page.js'
import type { ModeName } from '../../../lib/config/config.js'
import { PersistentMap } from '../../../lib/state/persistent-map.js'
import { noFlows, type PageView } from '../../../lib/page/readers.js'
import type { PathView, PodView, Sender } from '../../../lib/page/view.js'

const backends = ['pod-1', 'pod-2', 'pod-4'] as const satisfies readonly Place[]
const clusterIp = '10.96.0.10'

const pods: readonly PodView[] = backends.map((place) => ({
  name: `web-${place}`,
  ip: addressOf(place, 'IPv4'),
  node: place === 'pod-4' ? 'node-2' : 'node-1',
  state: 'ready',
}))

/** The path to a Service with three pods, which are only objects: nothing runs. */
function path(mode: ModeName, sender: Exclude<Sender, 'backend'>, spec: object = {}): PathView {
  const api = createApiServer({ runtime: undefined })
  const ports = [{ name: 'http', port: 80, protocol: 'TCP' }]
  api.put({
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: 'node-1' },
    status: { addresses: [{ type: 'InternalIP', address: addressOf('node', 'IPv4') }] },
  })
  api.put({
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name: 'web', namespace: 'default' },
    spec: { clusterIP: clusterIp, clusterIPs: [clusterIp], ports, ...spec },
  })
  api.put({
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      name: 'web-1',
      namespace: 'default',
      labels: { 'kubernetes.io/service-name': 'web' },
    },
    addressType: 'IPv4',
    ports: [{ name: 'http', port: 8080, protocol: 'TCP' }],
    endpoints: pods.map(({ ip, node }) => ({
      addresses: [ip],
      nodeName: node,
      conditions: { ready: true },
    })),
  })
  const state = stateOf(api.registry, mode, namespaceLayout)
  if (!state) throw new Error('there is no state')
  return pathOf(onlyService(state, 'default/web'), mode, {
    layout: namespaceLayout,
    scheduler: 'rr',
    sender,
    room: { addresses: namespaceLayout.addresses[sender] },
    protocol: 'TCP',
    destination: clusterIp,
    port: 80,
    podAt: (ip) => pods.find((pod) => pod.ip === ip)?.name,
  })
}

const modes = ['userspace', 'iptables', 'ipvs', 'nftables'] as const satisfies readonly ModeName[]

for (const mode of modes) {
  t.test(`${mode}: the way leads to every pod, with a third of the connections each`, async (t) => {
    const { shared, ways, note } = path(mode, 'client-pod')
    t.equal(note, '')
    t.ok(shared.length > 0, 'there are rules on the way')
    t.same(ways.map(({ pod }) => pod).sort(), pods.map(({ name }) => name).sort())
    for (const way of ways) {
      t.ok(Math.abs(way.probability - 1 / 3) < 1e-6)
      t.equal(way.isMasqueraded, mode === 'userspace', 'only the proxy hides who asked')
    }
    const own = path(mode, 'client-pod', { internalTrafficPolicy: 'Local' })
    t.same(own.ways.map(({ pod }) => pod).sort(), ['web-pod-1', 'web-pod-2'], 'policy Local')
    const outside = path(mode, 'outside')
    t.ok(
      outside.ways.every(({ isMasqueraded }) => isMasqueraded),
      'from outside: masqueraded',
    )
  })
}

function viewOf(mode: ModeName): PageView {
  const line = { key: 'default/web', type: 'ClusterIP', clusterIp, ports: '80/TCP' }
  return {
    isReadOnly: true,
    where: 'unit data',
    limits: [],
    mode,
    modes: [...modes],
    listensItself: false,
    scheduler: 'rr',
    busy: '',
    pending: '',
    families: [],
    family: '',
    services: PersistentMap.from([[line.key, line]]),
    service: {
      name: 'default/web',
      type: 'ClusterIP',
      protocol: 'TCP',
      clusterIp,
      port: 80,
      nodePort: 0,
      loadBalancerIp: '',
      affinity: false,
      internalPolicy: 'Cluster',
      externalPolicy: 'Cluster',
      sourceRanges: [],
    },
    pods,
    replicas: 3,
    mostReplicas: 0,
    marks: [],
    sender: 'client-pod',
    senders: namespaceLayout.senders,
    target: { name: 'ClusterIP', address: `${clusterIp}:80` },
    targets: [{ name: 'ClusterIP', address: `${clusterIp}:80` }],
    path: path(mode, 'client-pod'),
    comparison: [],
    counters: { rules: {}, endpoints: {}, note: '' },
    continuous: false,
    answers: [],
    asked: 0,
    log: [],
    flows: noFlows,
    stream: null,
    rules: { mode, modes: [...modes], lines: [], lastChange: '' },
    timeline: null,
    lessons: [],
    exercises: [],
    objects: [],
    kubectl: '',
    kubeconfig: '',
  }
}

const skip = hasBrowser ? false : `there is no ${browserPath}; apt-get install chromium`

t.test(
  'the picture draws the way of every mode, also of ipvs without IPVS in the kernel',
  { skip },
  async (t) => {
    for (const mode of modes) {
      const view = viewOf(mode)
      const server = await PageServer.listen(
        { view: () => view, subscribe: () => () => undefined },
        0,
      )
      const page = await newPage(await sharedBrowser())
      await page.goto(server.url)
      await page.locator('#picture .plate').nth(2).waitFor()
      t.equal(await page.locator('#picture .plate').count(), 3, `${mode}: a way to each pod`)
      t.equal(
        await page.locator('#picture .hop').count(),
        view.path.shared.length,
        'a number a hop',
      )
      const isInTheWay = (await page.locator('#picture .writes').count()) === 0
      t.equal(isInTheWay, mode === 'userspace', 'kube-proxy is in the way of its own mode only')
      if (mode === 'ipvs') {
        await page.locator('#picture', { hasText: 'IPVS virtual server' }).waitFor()
        await page.locator('#ways, #hops').filter({ hasText: clusterIp }).first().waitFor()
      }
      t.equal(
        await page.locator('#send-1').isVisible(),
        false,
        'a page that only shows has no controls',
      )
      await page.close()
      await server.close()
    }
  },
)
