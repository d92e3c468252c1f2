import t from 'tap'
import { createApiServer } from '../../../lib/lab/apiserver/server.js'
import { namespaceLayout } from '../../../lib/lab/playground/namespace-layout.js'
import { Selection } from '../../../lib/lab/playground/selection.js'
import { stateOf } from '../../../lib/lab/playground/rules-view.js'
import type { ServiceView } from '../../../lib/page/view.js'

const clusterIp = '10.96.0.16'
const podIp = '10.244.1.21'

/** What the daemon makes of the Service, with its pod or without. */
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
    pods: () => [{ name: 'web-1', ip: podIp, node: 'node-1', state: 'ready' }],
    roomOf: () => undefined,
  })
  const [without, withPod] = [stateWith([]), stateWith([podIp])]
  const running = { mode: 'iptables', scheduler: 'rr' } as const
  const keys = (has: typeof without, pod: string | undefined) =>
    selection.probe(running, { has, wanted: () => withPod }).countersTo(pod)

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
})
