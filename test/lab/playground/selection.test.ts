import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { createApiServer } from '../../../lib/lab/apiserver/server.js'
import { namespaceLayout } from '../../../lib/lab/playground/cluster-layout.js'
import { reachPod, Selection } from '../../../lib/lab/playground/selection.js'
import { stateOf } from '../../../lib/lab/playground/rules-view.js'
import { WebApp } from '../../../lib/lab/playground/web-app.js'
import type { ServiceView } from '../../../lib/page/view.js'

const clusterIp = '10.96.0.16'
const podIp = '10.244.1.21'
/** The address of a pod that listens on another port. */
const workerIp = '10.244.1.22'

/** The state of the Service when these addresses are its endpoints. */
function stateWith(addresses: readonly string[]) {
  const api = createApiServer()
  api.put({
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name: 'web' },
    spec: {
      clusterIP: clusterIp,
      clusterIPs: [clusterIp],
      ipFamilies: ['IPv4'],
      ports: [{ name: 'http', port: 80, protocol: 'TCP' }],
    },
  })
  api.put({
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { name: 'web-1', labels: { 'kubernetes.io/service-name': 'web' } },
    addressType: 'IPv4',
    ports: [{ name: 'http', port: 8080, protocol: 'TCP' }],
    endpoints: addresses.map((address) => ({
      addresses: [address],
      nodeName: 'node-1',
      conditions: { ready: true },
    })),
  })
  return stateOf(api.registry, 'iptables', namespaceLayout)
}

t.test('the page knows which counters its own connection has moved', async (t) => {
  const service: ServiceView = {
    ...{ name: 'default/web', protocol: 'TCP', clusterIp, port: 80, nodePort: 0 },
    ...{ loadBalancerIp: '', type: 'ClusterIP', affinity: false, sourceRanges: [] },
    ...{ internalPolicy: 'Cluster', externalPolicy: 'Cluster' },
  }
  const selection = new Selection({
    layout: namespaceLayout,
    service: () => service,
    pods: () => [
      { name: 'web-1', ip: podIp, node: 'node-1', state: 'ready' },
      { name: 'worker', ip: workerIp, node: 'node-1', state: 'ready' },
    ],
    rooms: { roomOf: () => undefined, serves: (ip, port) => ip === podIp && port === 8080 },
  })
  const [without, withPod] = [stateWith([]), stateWith([podIp])]
  const withBoth = stateWith([podIp, workerIp])
  const running = { mode: 'iptables', scheduler: 'rr' } as const
  const keys = (has: typeof without, pod: string | undefined, newest = withPod) =>
    selection.probe(running, { has, wanted: () => newest }).countersTo(pod)

  const { request } = selection.probe(running, { has: withPod, wanted: () => withPod })
  t.match(request, { host: clusterIp, isProbe: true }, 'no log of a pod has it')
  const known = keys(withPod, 'web-1')
  t.ok(known.includes(`${podIp}:8080`))
  t.ok(
    known.some((key) => key.includes('DNAT')),
    known.join(),
  )
  t.same(keys(without, 'web-1'), known, 'it answered, although no log has said that it can')
  t.same(keys(undefined, 'web-1'), known)
  const refused = keys(without, undefined)
  t.ok(
    refused.some((key) => key.includes('REJECT')),
    refused.join(),
  )
  t.notOk(refused.some((key) => key.includes('DNAT')))
  t.ok(
    refused.some((key) => key.startsWith('nat PREROUTING ')),
    `the kernel counts jumps that lead to nothing: ${refused.join()}`,
  )

  const silent = keys(withBoth, undefined)
  t.ok(
    silent.includes(`${workerIp}:8080`) && !silent.includes(`${podIp}:8080`),
    `nobody else is silent: ${silent.join()}`,
  )
  t.same(keys(withPod, undefined, withBoth), silent, 'although no log has said that it was asked')
  t.same(keys(without, undefined, withBoth), refused, 'as the kernel has it for sure')

  const withThree = stateWith([podIp, workerIp, '10.244.1.23'])
  const sent = (endpoint?: string) =>
    selection
      .probe(running, { has: withThree, wanted: () => withThree })
      .countersTo(undefined, endpoint)
  const endpoints = (list: readonly string[]) => list.filter((key) => /^[\d.]+:8080$/.test(key))
  t.same(endpoints(sent()), [], 'two are silent, and nothing tells which of them was asked')
  t.same(endpoints(sent(`${workerIp}:8080`)), [`${workerIp}:8080`])
  t.same(endpoints(sent('10.244.1.23:8080')), ['10.244.1.23:8080'])
  t.same(endpoints(sent(`${podIp}:8080`)), [`${podIp}:8080`], 'it answers only now')

  const probe = selection.probe(running, { has: without, wanted: () => withBoth })
  t.ok(probe.mayReach('web-1'))
  t.notOk(probe.mayReach('worker'), 'no connection of the page is spent on it')
  t.notOk(probe.isClear(), 'a refusal may be of the old rules or of the new')
  const isClear = (has: typeof without, newest: typeof without) =>
    selection.probe(running, { has, wanted: () => newest }).isClear()
  t.ok(isClear(withPod, withBoth), 'a refusal can only be of the new rules')
  t.ok(isClear(withBoth, withBoth))
  t.ok(isClear(undefined, withBoth))
})

t.test('a pod is reached by a connection that comes late on a busy machine', async (t) => {
  let made = 0
  const flow = async () => {
    await delay(400)
    return [{ outcome: 'reply', backend: ++made < 10 ? 'other' : 'pod' }]
  }
  const probe = {
    request: { protocol: 'TCP', host: '10.96.0.10', port: 80, count: 1 } as const,
    mayReach: () => true,
    isClear: () => true,
    countersTo: () => [],
  }
  const cluster = { flow, layout: namespaceLayout } as unknown as ReachDeps['testBed']
  const { signal } = new AbortController()
  const deps = { mode: 'userspace', probe: () => probe, passed: () => undefined, signal }
  t.ok(await reachPod('pod', { testBed: cluster, ...deps }))
})

type ReachDeps = Parameters<typeof reachPod>[1]

t.test('pods that the chosen Service selects come first, and its sender is one of them', (t) => {
  const api = createApiServer({ runtime: undefined })
  const app = new WebApp(api.registry)
  app.create(0, namespaceLayout.ports)
  for (const name of ['hello', 'web']) {
    api.put({
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { name: `${name}-1`, namespace: 'default', labels: { app: name } },
      spec: { nodeName: 'node-1', containers: [{ name: 'x', image: 'x' }] },
      status: { podIP: podIp, conditions: [{ type: 'Ready', status: 'True' }] },
    })
  }
  const pods = () => app.pods()
  t.same(
    pods().map(({ name }) => name),
    ['web-1', 'hello-1'],
  )
  const selection = new Selection({
    ...{ layout: namespaceLayout, service: () => app.service(), pods },
    rooms: {
      roomOf: (name) => ({ place: name === 'web-1' ? 'pod-1' : 'pod-2', addresses: [] }),
      serves: () => true,
    },
  })
  selection.sendFrom('backend')
  t.equal(selection.request('iptables').room?.place, 'pod-1')
  t.end()
})
