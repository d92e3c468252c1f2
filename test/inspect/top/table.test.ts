import t from 'tap'
import { daemonNumbers } from '../../../lib/inspect/top/daemon-numbers.js'
import { rowsOfKernel, withSockets } from '../../../lib/inspect/top/rows.js'
import { bytes, topText, withRates, type TopRow } from '../../../lib/inspect/top/table.js'
import { service, states } from '../../support/states.js'

const row = (name: string, more: Partial<TopRow> = {}) => ({
  ...{ service: name, protocol: 'TCP', open: 0, total: 0, bytesIn: 0, bytesOut: 0, errors: 0 },
  ...{ newPerSecond: undefined, bytesInPerSecond: undefined, bytesOutPerSecond: undefined },
  ...more,
})

const options = { title: 'top', columns: 80, lines: undefined, hasRates: true }

t.test('top computes rates from two readings, and lists the busiest Service first', (t) => {
  const before = { at: 0, rows: [row('a', { total: 10 }), row('b', { total: 10, bytesIn: 100 })] }
  const now = { at: 2000, rows: [row('a', { total: 10 }), row('b', { total: 30, bytesIn: 4196 })] }
  const [first, second] = withRates(now, before)
  t.match(first, { service: 'b', newPerSecond: 10, bytesInPerSecond: 2048 })
  t.match(second, { service: 'a', newPerSecond: 0 })
  t.equal(withRates(now, undefined)[0]?.newPerSecond, undefined)
  // A counter that starts again at zero gives no negative rate.
  t.equal(withRates({ at: 3000, rows: [row('b', { total: 1 })] }, now)[0]?.newPerSecond, 0)
  t.end()
})

t.test('every line of top fits the terminal, and a missing number is a dash', (t) => {
  const rows = [
    row('default/'.padEnd(120, 'x')),
    row('kube-system/dns', { protocol: 'UDP', total: undefined, errors: undefined }),
    row('default/\u001B[2J\u202eevil'),
  ]
  const text = topText(rows, options)
  for (const line of text.split('\n')) t.ok(line.length <= 80, line)
  t.match(text, /kube-system\/dns\/UDP +0 +- +- +- +- +-/)
  t.notMatch(text, /[\u001B\u202e]/)
  const few = topText(rows, { ...options, lines: 4 })
  t.equal(few.split('\n').length, 4)
  t.match(few, /… and 2 more/)
  const narrow = topText(rows, { ...options, columns: 40, lines: 4 }).split('\n')
  t.same([narrow.length, Math.max(...narrow.map(({ length }) => length))], [4, 40])
  t.match(narrow[1], /^SERVICE +OPEN +TOTAL +NEW\/s +…$/)
  const advice =
    'Bytes are not counted; sysctl -w net.netfilter.nf_conntrack_acct=1 makes the kernel'
  const titled = topText([], { ...options, title: `top\n${advice}` }).split('\n')
  t.same([titled.length, titled[1]?.length, titled[2]], [4, 76, 'kernel'], 'advice is not cut')
  t.same([0, 1023, 1024, 150_000, 3 * 2 ** 30].map(bytes), ['0', '1023', '1.0K', '146K', '3.0G'])
  t.end()
})

t.test('top -o wide cuts no name and rounds no number', (t) => {
  const long = 'default/'.padEnd(120, 'x')
  const numbers = { total: 12_345_678, bytesIn: Number.MAX_SAFE_INTEGER, bytesOut: undefined }
  const rows = [row(long, numbers), row('default/\u001B[2J')]
  const lines = topText(rows, { ...options, hasRates: false, isWide: true }).split('\n')
  t.match(lines[2], new RegExp(`^${long} +0 +12345678 +- +9007199254740991 +- +0$`))
  t.equal(new Set(lines.slice(1).map(({ length }) => length)).size, 1, 'columns stand in line')
  t.notMatch(lines[3], /\u001B/)
  t.end()
})

t.test('top adds up the numbers of a proxy for each service port', (t) => {
  const page = [
    '# TYPE kubeproxy_service_connections_total counter',
    'kubeproxy_service_connections_total{service="default/web:http",protocol="TCP",endpoint="10.0.0.1:80"} 3',
    'kubeproxy_service_connections_total{service="default/web:http",protocol="TCP",endpoint="10.0.0.2:80"} 4',
    'kubeproxy_service_bytes_total{service="default/web:http",protocol="TCP",endpoint="10.0.0.1:80",direction="to_endpoint"} 50',
    'kubeproxy_service_bytes_total{service="default/web:http",protocol="TCP",endpoint="10.0.0.1:80",direction="to_client"} 70',
    'kubeproxy_service_active_connections{service="default/web:http",protocol="TCP"} 2',
    'kubeproxy_service_dial_errors_total{service="default/web:http",protocol="TCP",endpoint="10.0.0.1:80"} 1',
    'kubeproxy_service_refused_connections_total{service="default/web:http",protocol="TCP"} 1',
  ].join('\n')
  t.same(daemonNumbers(page).get('default/web:http/TCP'), {
    ...{ open: 2, total: 7, bytesIn: 50, bytesOut: 70, errors: 2 },
  })
  t.end()
})

/** A connection that the kernel tracks, to this address. */
const flow = (ip: string, port: number) => ({
  protocol: 'TCP' as const,
  source: { ip: '10.1.1.1', port: 1 },
  destination: { ip, port },
  answeredBy: { ip: '10.2.2.2', port: 8080 },
  answeredTo: { ip: '10.1.1.1', port: 1 },
  bytes: { toEndpoint: 10, toClient: 20 },
})

t.test('top counts a tracked connection for the Service whose address the client used', (t) => {
  const state = states()
    .put(service({ name: 'web', nodePort: 30080 }))
    .take()
  const [web] = state.services.values()
  const here = state.node.localAddresses[0] ?? ''
  const flows = [flow(web?.clusterIp ?? '', web?.port ?? 0), flow(here, 30080), flow('8.8.8.8', 80)]
  const counted = new Map([[web?.key ?? '', { total: 9, errors: 1 }]])
  t.match(rowsOfKernel([state], flows, counted), [
    { open: 2, total: 9, errors: 1, bytesIn: 20, bytesOut: 40 },
  ])
  const uncounted = flows.map((each) => ({ ...each, bytes: undefined }))
  t.match(rowsOfKernel([state], uncounted, new Map()), [
    { open: 2, total: undefined, bytesIn: undefined },
  ])
  t.end()
})

t.test('top counts no connection that a program of the node answers itself', (t) => {
  const state = states()
    .put(service({ name: 'web', nodePort: 30080 }))
    .take()
  const own = flow(state.node.localAddresses[0] ?? '', 30080)
  const flows = [{ ...own, answeredBy: own.destination }]
  t.match(rowsOfKernel([state], flows, new Map()), [{ open: 0, bytesIn: 0 }])
  t.end()
})

t.test('top counts a connection for the one of several Services that gets it', (t) => {
  const here = states().take().node.localAddresses[0] ?? ''
  const shared = '198.51.100.9'
  const state = states()
    .put(service({ name: 'a-node-port', nodePort: 30080 }))
    .put(service({ name: 'own', port: 30080, externalIps: [here] }))
    .put(...Array.from({ length: 9 }, (_, n) => service({ name: `s-${n}`, externalIps: [shared] })))
    .take()
  const rows = rowsOfKernel([state], [flow(here, 30080), flow(shared, 80)], new Map())
  const counted = rows.filter(({ open }) => open > 0).map(({ service: name }) => name)
  t.same(counted.sort(), ['default/own:http', 'default/s-0:http'])
  t.end()
})

t.test('numbers of sockets are added to what the kernel tracks', (t) => {
  const page = [
    'kubeproxy_service_connections_total{service="a",protocol="TCP",endpoint="1.2.3.4:80"} 7',
    'kubeproxy_service_active_connections{service="a",protocol="TCP"} 2',
    'kubeproxy_service_refused_connections_total{service="a",protocol="TCP"} 1',
  ].join('\n')
  const tracked = [
    row('a', { open: 3, total: undefined, bytesIn: undefined, errors: undefined }),
    row('b', { open: 1, bytesIn: 5 }),
  ]
  const [a, b] = withSockets(tracked, daemonNumbers(page))
  t.match(a, { open: 5, total: 7, bytesIn: 0, errors: 1 })
  t.match(b, { open: 1, total: 0, bytesIn: 5, errors: 0 })
  t.end()
})

t.test('a cut name keeps its beginning and its end', (t) => {
  const rows = ['dns', 'dns-tcp'].map((port) => row(`kube-system/kube-dns:${port}`))
  const lines = topText(rows, { ...options, columns: 60 }).split('\n')
  t.match(lines.slice(1), [/^SERVICE /, /^kube-sys…-dns:dns +0 /, /^kube-sys…:dns-tcp +0 /])
  t.end()
})

t.test('60 columns have room for the whole number of errors', (t) => {
  const busy = row('kube-system/kube-dns:dns', { errors: 123_456 })
  for (const columns of [60, 64, 65, 80]) {
    const lines = topText([busy], { ...options, columns, lines: 24 }).split('\n')
    t.match(lines[1], / ERRORS$/, `${columns} columns`)
    t.match(lines[2], / 123456$/, `${columns} columns`)
    t.ok(lines.every((line) => line.length < columns))
  }
  t.end()
})
