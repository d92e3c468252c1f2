import t from 'tap'
import { chainIn } from '../../../lib/kernel/place.js'
import { counterOf } from '../../../lib/page/path-view.js'
import { CounterReader } from '../../../lib/lab/playground/counter-reader.js'
import { countersOf } from '../../../lib/lab/playground/counters.js'
import { namespaceLayout } from '../../../lib/lab/playground/cluster-layout.js'
import { sentTo } from '../../../lib/lab/playground/sent-to.js'
import { parsePageCommand } from '../../../lib/page/commands.js'
import type { Gauge } from '../../../lib/lab/playground/node-gauge.js'
import type { PathView } from '../../../lib/page/view.js'

const hop = (chain: string, rule: string) => ({
  ...{ where: chain, rule, why: '' },
  counter: counterOf({ place: chainIn('nat', chain), text: rule }),
})
const path: PathView = {
  note: '',
  shared: [
    hop(
      'KUBE-SERVICES',
      '-d 10.96.0.10/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-A',
    ),
  ],
  ways: [
    {
      probability: 0.5,
      verdict: '',
      end: 'pod',
      pod: '',
      isMasqueraded: false,
      hops: [
        hop(
          'KUBE-SVC-A',
          '-p tcp -m comment --comment "default/web:http -> 10.244.1.21:8080" -m statistic --mode random --probability 0.3333333333 -j DNAT --to-destination 10.244.1.21:8080',
        ),
      ],
    },
  ],
}
/** A tracked connection from a port of the client to a place, which port 8080 of an address answers. */
function flow(port: number, to: string, by: string, client = '10.244.1.10') {
  const [ip = '', toPort] = to.split(':')
  const source = { ip: client, port }
  return {
    ...({ protocol: 'TCP', source, destination: { ip, port: Number(toPort) } } as const),
    ...{ answeredBy: { ip: by, port: 8080 }, answeredTo: source, bytes: undefined },
  }
}
const counted = { service: 'default/web', path, addresses: ['10.96.0.10:80'], node: ['10.244.1.1'] }

t.test('iptables: the page counts packets by rule and connections by endpoint', async (t) => {
  const iptables = [
    '*nat',
    '[7:420] -A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-A',
    '[9:540] -A KUBE-SERVICES -d 10.96.0.99/32 -p tcp -m comment --comment "default/other:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-B',
    '[3:180] -A KUBE-SVC-A -p tcp -m comment --comment "default/web:http -> 10.244.1.21:8080" -m statistic --mode random --probability 0.33333333349 -j DNAT --to-destination 10.244.1.21:8080',
    '[5:300] -A KUBE-SVC-B -p tcp -m comment --comment "default/other:http -> 10.244.1.22:8080" -j DNAT --to-destination 10.244.1.22:8080',
  ].join('\n')
  const { rules, endpoints } = countersOf({ ...counted, mode: 'iptables' }, { iptables })
  t.same(Object.values(rules), [7, 3])
  t.same(endpoints, { '10.244.1.21:8080': 3 }, 'of this Service only')
})

t.test('a mode that begins with connections of the page’s own shows none of them', async (t) => {
  const [counter = ''] = path.shared.map((each) => each.counter)
  let count = 0
  const ask = () => Promise.resolve({ simulated: { rules: { [counter]: count }, endpoints: {} } })
  let changed: () => void = () => undefined
  const next = () => new Promise<void>((resolve) => (changed = resolve))
  const reader = new CounterReader({ ask }, () => changed())
  const read = (mode: string) => {
    const done = next()
    reader.refresh({ ...counted, mode })
    return done
  }
  await read('userspace')
  await reader.unseen((passed) => {
    count = 2
    passed('iptables', [counter])
    passed('iptables', [counter])
    return Promise.resolve()
  })
  // Only the request of a user is shown.
  count++
  await read('iptables')
  t.same(reader.view.rules, { [counter]: 1 })
  await reader.close()
})

t.test('nftables: the page counts connections of the connection table, and says so', async (t) => {
  const tracked = [
    flow(41000, '10.96.0.10:80', '10.244.1.21'),
    flow(41001, '10.96.0.10:80', '10.244.1.21'),
    flow(41002, '10.96.0.99:80', '10.244.1.22'),
    // Of userspace mode, which ran before: kube-proxy took it.
    flow(41003, '10.96.0.10:80', '10.244.1.1'),
    // The page's own.
    flow(39000, '10.96.0.10:80', '10.244.1.21'),
  ]
  const { rules, endpoints, note } = countersOf({ ...counted, mode: 'nftables' }, { tracked })
  t.same(rules, {})
  t.same(endpoints, { '10.244.1.21:8080': 2 })
  t.match(note, /have no counters/)
})

t.test('ebpf mode adds what sockets translated to what the kernel tracks', async (t) => {
  const metrics =
    'kubeproxy_service_connections_total{service="default/web:http",protocol="TCP",endpoint="10.244.1.21:8080"} 12'
  const tracked = [flow(4000, '10.96.0.10:80', '10.244.1.21', '10.244.2.9')]
  const { endpoints } = countersOf({ ...counted, mode: 'ebpf' }, { metrics, tracked })
  t.same(endpoints, { '10.244.1.21:8080': 13 })
})

t.test(
  'where a request was sent that nobody answered is in the table of connections',
  async (t) => {
    const pod = '10.244.1.10'
    const tracked = [
      flow(41000, '10.96.0.10:80', '10.244.1.21'),
      flow(41001, '10.96.0.10:80', '10.244.1.22'),
      flow(41001, '10.96.0.10:80', '10.244.1.23', '10.244.1.11'),
      flow(41002, '10.96.0.10:80', '10.244.1.1'),
      flow(41003, '10.244.1.22:8080', '10.244.1.22'),
    ]
    const gauge: Gauge = { ask: () => Promise.resolve({ tracked }) }
    const request = { protocol: 'TCP', host: '10.96.0.10', port: 80 } as const
    const ask = (mode: string, answer = gauge) =>
      sentTo(
        { layout: namespaceLayout, gauge: answer },
        { mode, addresses: [pod], request },
        [41000, 41001, 41002, 41003, 41004].map((clientPort) => ({
          outcome: 'dropped',
          clientPort,
        })),
      )
    const [first, second, byNode, socket, none] = await ask('iptables')
    t.same([first, second], [['10.244.1.21:8080'], ['10.244.1.22:8080']], 'two are silent at once')
    t.same(byNode, [], 'the node itself is no endpoint')
    t.same(socket, ['10.244.1.22:8080'], 'translated at a socket')
    t.same(none, [], 'a rule dropped it')
    t.equal((await ask('ipvs'))[4], null, 'IPVS has a table of its own')
    const unreadable = { ask: () => Promise.resolve({}) }
    t.same(await ask('iptables', unreadable), [null, null, null, null, null])
    t.same(await ask('userspace'), [null, null, null, null, null], 'only kube-proxy knows')
  },
)

t.test('the page shows the counters of userspace mode and of ipvs servers', async (t) => {
  const metrics = [
    'kubeproxy_service_connections_total{service="default/web:http",protocol="TCP",endpoint="10.244.1.21:8080"} 8',
    'kubeproxy_service_connections_total{service="default/web:alt",protocol="TCP",endpoint="10.244.1.21:8080"} 4',
    'kubeproxy_service_connections_total{service="default/other:http",protocol="TCP",endpoint="10.244.1.22:8080"} 3',
  ].join('\n')
  t.same(countersOf({ ...counted, mode: 'userspace' }, { metrics }).endpoints, {
    '10.244.1.21:8080': 12,
  })
  const ipvs = [
    'Prot LocalAddress:Port               Conns   InPkts  OutPkts  InBytes OutBytes',
    '  -> RemoteAddress:Port',
    'TCP  10.96.0.10:80                       5       30       20     1900     2000',
    '  -> 10.244.1.21:8080                    4       24       16     1500     1600',
    'TCP  10.96.0.99:80                       9       30       20     1900     2000',
    '  -> 10.244.1.22:8080                    9       24       16     1500     1600',
  ].join('\n')
  t.same(countersOf({ ...counted, mode: 'ipvs' }, { ipvs }).endpoints, { '10.244.1.21:8080': 4 })
  t.same(countersOf({ ...counted, mode: 'ipvs' }, {}).endpoints, {}, 'nothing read, nothing said')
})

t.test('commands of the page are split into words, or refused', async (t) => {
  const parse = (value: unknown) => parsePageCommand(JSON.stringify(value))
  t.same(parse({ do: 'pod', pod: 'web-1', action: 'kill' }), {
    do: 'pod',
    pod: 'web-1',
    action: 'kill',
  })
  t.same(parse({ do: 'ranges', ranges: ['10.0.0.0/8'] }), { do: 'ranges', ranges: ['10.0.0.0/8'] })
  t.same(parse({ do: 'type', type: 'LoadBalancer' }), { do: 'type', type: 'LoadBalancer' })
  for (const wrong of [
    { do: 'pod', pod: 'web-1', action: 'explode' },
    { do: 'pod', action: 'kill' },
    { do: 'ranges', ranges: 'all' },
    { do: 'ranges', ranges: [1] },
    { do: 'ranges', ranges: Array.from({ length: 17 }, () => '10.0.0.0/8') },
    { do: 'type', type: 'ExternalName' },
    { do: 'replicas', count: 101 },
    { do: 'scheduler', scheduler: 'rr; reboot' },
    { do: 'apply', yaml: 1 },
    { do: 'format' },
    null,
    'mode',
  ]) {
    t.equal(parse(wrong), undefined, JSON.stringify(wrong).slice(0, 60))
  }
  t.equal(parsePageCommand('{'), undefined)
})
