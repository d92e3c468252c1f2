import t, { type Test } from 'tap'
import { execFileSync, spawnSync } from 'node:child_process'
import { createServer as createHttpServer } from 'node:http'
import { createServer, connect } from 'node:net'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { once } from 'node:events'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { connectionsIn, daemonNumbers } from '../../../lib/inspect/top/daemon-numbers.js'
import { addNodeCgroup, removeCgroup } from '../../../lib/lab/world/cgroups.js'
import { startCgroupClient, type Exchange } from '../../support/cgroup-client.js'
import { enterPrivateNetns } from '../../support/private-netns.js'
import { kubeProxy, startProxy } from '../../support/live-daemon.js'
import { endpoint, rawService, rawSlice } from '../../state/objects.js'
import { hostPort } from '../../../lib/state/ip.js'
import type { FlowRecord } from '../../../lib/observe/flows/answer.js'

/** Connections that clients made, as `/metrics` and `kube-proxy flows` tell of them. */

const skip = enterPrivateNetns() ?? false
const folder = mkdtempSync(join(tmpdir(), 'flows-'))
t.teardown(() => rmSync(folder, { recursive: true }))
if (skip === false) {
  execFileSync('ip', ['link', 'set', 'lo', 'up'])
  execFileSync('ip', ['address', 'add', '192.0.2.1/24', 'dev', 'lo'])
  execFileSync('ip', ['route', 'add', 'default', 'dev', 'lo'])
  // Over lo a client never hears that it is refused.
  execFileSync('ip', ['link', 'add', 'out', 'type', 'veth', 'peer', 'name', 'beyond'])
  for (const link of ['out', 'beyond']) execFileSync('ip', ['link', 'set', link, 'up'])
  execFileSync('ip', ['address', 'add', '2001:db8::1/128', 'dev', 'lo', 'nodad'])
  for (const [ip, from] of [
    ['10.96.0.11/32', '192.0.2.1'],
    ['fd00:10:96::11/128', '2001:db8::1'],
  ] as const) {
    execFileSync('ip', ['route', 'add', ip, 'dev', 'out', 'src', from])
  }
  for (const ip of ['10.244.1.1', '10.244.1.2']) {
    execFileSync('ip', ['address', 'add', `${ip}/32`, 'dev', 'lo'])
  }
}

const service = (name: string, clusterIP: string, spec: object = {}, status = {}) => {
  const ports = [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080 }]
  return rawService({ name, spec: { clusterIP, clusterIPs: [clusterIP], ports, ...spec }, status })
}
const nodePort = (at: number) => ({
  type: 'NodePort',
  ports: [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080, nodePort: at }],
})
const onNode2 = (name: string) =>
  rawSlice({ name, service: name, endpoints: [endpoint('10.244.2.1', { node: 'node-2' })] })
const web = ['10.244.1.1', '10.244.1.2'].map((ip, index) => ({
  ...endpoint(ip),
  targetRef: { kind: 'Pod', name: `web-${index}`, namespace: 'default' },
}))

const documents = [
  service('web', '10.96.0.10', nodePort(30080)),
  rawSlice({ endpoints: web }),
  service('web6', 'fd00:10:96::10', { ipFamilies: ['IPv6'] }),
  rawSlice({
    name: 'web6',
    service: 'web6',
    addressType: 'IPv6',
    endpoints: [endpoint('2001:db8::1')],
  }),
  service('shut', '10.96.0.15'),
  rawSlice({ name: 'shut', service: 'shut', endpoints: [endpoint('192.0.2.1')] }),
  service('empty', '10.96.0.11', nodePort(30081)),
  service('empty6', 'fd00:10:96::11', { ipFamilies: ['IPv6'] }),
  service('early', '10.96.0.14'),
  service('away', '10.96.0.12', { internalTrafficPolicy: 'Local' }),
  onNode2('away'),
  service(
    'guarded',
    '10.96.0.13',
    { type: 'LoadBalancer', loadBalancerSourceRanges: ['198.51.100.0/24'] },
    { loadBalancer: { ingress: [{ ip: '203.0.113.1' }] } },
  ),
  onNode2('guarded'),
]
writeFileSync(
  join(folder, 'objects.yaml'),
  documents.map((each) => JSON.stringify(each)).join('\n---\n'),
)

/** Nobody is in it, so that nothing is translated at sockets: what is left is NAT of the kernel. */
const cgroup = skip === false ? addNodeCgroup(`flows-${process.pid}`) : ''
t.teardown(() => (cgroup === '' ? undefined : removeCgroup(cgroup)))

const flagsOf = (mode: string) => [
  ...(mode === 'ebpf' ? ['--ebpf-cgroup', cgroup, '--ebpf-bpffs', ''] : []),
  ...['--proxy-mode', mode, '--manifests', folder, '--hostname-override', 'node-1'],
  ...['--cluster-cidr', '10.244.0.0/16', '--flows'],
  ...['--flows-state-file', join(folder, `${mode}.json`)],
]

/** Each connection gets 3 bytes and is closed by the server. Returns who has come, and where. */
async function startServers(t: Test): Promise<readonly string[]> {
  const seen: string[] = []
  for (const host of ['10.244.1.1', '10.244.1.2', '2001:db8::1']) {
    const server = createServer((socket) => {
      const { remoteAddress = '', remotePort = 0 } = socket
      seen.push(`${hostPort(remoteAddress, remotePort)} ${hostPort(host, 8080)}`)
      socket.on('error', () => undefined)
      socket.on('data', () => socket.end('yes'))
    })
    server.listen(8080, host)
    await once(server, 'listening')
    t.teardown(() => new Promise((closed) => server.close(closed)))
  }
  return seen
}

type Outcome = 'answered' | 'refused' | 'silence'

/** In this time a packet without an answer is sent again. */
const patienceMs = 1500

function visit(host: string, to: number): Promise<Outcome> {
  return new Promise((resolve) => {
    const socket = connect(to, host, () => socket.write('hello'))
    let answer = ''
    socket.setTimeout(patienceMs, () => {
      resolve('silence')
      socket.destroy()
    })
    socket.on('data', (data) => (answer += data.toString()))
    socket.on('error', () => resolve('refused'))
    socket.on('close', () => resolve(answer === 'yes' ? 'answered' : 'refused'))
  })
}

async function visits(count: number, host: string, to = 80): Promise<readonly Outcome[]> {
  const outcomes: Outcome[] = []
  for (let made = 0; made < count; made++) outcomes.push(await visit(host, to))
  return outcomes
}

const page = async () => (await fetch('http://127.0.0.1:10249/metrics')).text()

const numbersOf = async (name: string) => daemonNumbers(await page()).get(`${name}/TCP`)

/** What is told a moment later is waited for, however long that takes. */
async function until<T>(read: () => Promise<T>, isThere: (value: T) => boolean): Promise<T> {
  for (;;) {
    const value = await read()
    if (isThere(value)) return value
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

/** A thread of its own hears of connections, from a moment after the rules stand. */
async function untilHeard(): Promise<void> {
  const asked = async () => {
    await visit('10.96.0.14', 80)
    return flowsOf('early')
  }
  await until(asked, ({ length }) => length > 0)
}

async function flowsOf(...args: readonly string[]): Promise<readonly FlowRecord[]> {
  const { stdout, stderr, code } = await kubeProxy('flows', ...args, '-o', 'json')
  if (code !== 0) throw new Error(stderr)
  return stdout
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as FlowRecord)
}

/** What an OpenTelemetry collector of this node is sent. */
async function startCollector(t: Test): Promise<{ readonly bodies: readonly string[] }> {
  const bodies: string[] = []
  const server = createHttpServer((request, response) => {
    let body = request.url ?? ''
    request.setEncoding('utf8').on('data', (piece: string) => (body += piece))
    request.on('end', () => {
      bodies.push(body)
      response.end('{}')
    })
  })
  await once(server.listen(4318, '127.0.0.1'), 'listening')
  t.teardown(() => new Promise((closed) => server.close(closed)))
  return { bodies }
}

for (const mode of ['iptables', 'nftables', 'ebpf']) {
  t.test(
    `every connection is counted once in ${mode} mode, also over a restart`,
    { skip },
    async (t) => {
      await startServers(t)
      const first = await startProxy(t, flagsOf(mode))
      const outcomes = [
        ...(await visits(40, '10.96.0.10')),
        ...(await visits(10, '192.0.2.1', 30080)),
      ]
      t.same(new Set(outcomes), new Set(['answered']))
      const seen = await until(
        () => numbersOf('default/web:http'),
        (numbers) => (numbers?.connections ?? 0) >= 50,
      )
      t.equal(seen?.connections, 50)
      await first.end('SIGTERM')
      t.same(new Set(await visits(15, '10.96.0.10')), new Set(['answered']), 'nobody listens now')
      const second = await startProxy(t, flagsOf(mode))
      await visits(20, '10.96.0.10')
      const after = await until(
        () => numbersOf('default/web:http'),
        (numbers) => (numbers?.connections ?? 0) >= 85 && numbers?.open === 0,
      )
      t.equal(after?.connections, 85)
      t.equal(after?.open, 0, 'all are closed')
      t.ok((after?.bytesIn ?? 0) >= 85 * 5 && (after?.bytesOut ?? 0) >= 85 * 3, 'with their bytes')
      const endpoints = connectionsIn(await page()).filter(
        ({ service }) => service === 'default/web:http',
      )
      t.equal(
        endpoints.reduce((sum, { count }) => sum + count, 0),
        85,
        'by endpoint',
      )
      await second.end('SIGTERM')
      await kubeProxy('cleanup')
    },
  )
}

/** What the stream says of each that a client was not answered. */
const turnedAway = [
  { host: '10.96.0.11', name: 'empty', verdict: 'no-endpoints', why: '', outcome: 'refused' },
  { host: 'fd00:10:96::11', name: 'empty6', verdict: 'no-endpoints', why: '', outcome: 'refused' },
  { host: '10.96.0.12', name: 'away', verdict: 'dropped', why: 'no local endpoint' },
  {
    ...{ host: '203.0.113.1', name: 'guarded', verdict: 'dropped' },
    why: 'not in loadBalancerSourceRanges',
  },
] as const

for (const mode of ['iptables', 'nftables', 'ebpf']) {
  t.test(
    `FL01: in ${mode} mode the verdict of each connection is what its client saw`,
    { skip },
    async (t) => {
      await startServers(t)
      const daemon = await startProxy(t, [...flagsOf(mode), '--flows-state-file='])
      await untilHeard()
      const each = 3
      t.same(await visits(each, '10.96.0.10'), Array<string>(each).fill('answered'))
      for (const { host, ...wanted } of turnedAway) {
        const outcome = 'outcome' in wanted ? wanted.outcome : 'silence'
        const outcomes = Array.from({ length: each }, () => visit(host, 80))
        t.same(await Promise.all(outcomes), Array<string>(each).fill(outcome), host)
      }
      // What the kernel tells of later is the end of connections of other tests.
      const isOwn = ({ event, verdict, service }: FlowRecord) =>
        service !== 'default/early:http' && (event === 'opened' || verdict !== 'forwarded')
      const told = async () => (await flowsOf()).filter(isOwn)
      const lines = await until(told, ({ length }) => length >= (1 + turnedAway.length) * each)
      const said = lines.map(({ service, address, verdict, why }) =>
        [service, address, verdict, why].join(' '),
      )
      const all = [
        { host: '10.96.0.10', name: 'web', verdict: 'forwarded', why: '' },
        ...turnedAway,
      ].map(
        ({ host, name, verdict, why }) =>
          `default/${name}:http ${hostPort(host, 80)} ${verdict} ${why}`,
      )
      t.same(said.sort(), all.flatMap((line) => Array<string>(each).fill(line)).sort())
      for (const { name } of turnedAway) {
        t.equal((await numbersOf(`default/${name}:http`))?.errors, each, name)
      }
      const { stdout, code } = await kubeProxy('diff')
      t.equal(code, 0, stdout)
      await daemon.end('SIGTERM')
      await kubeProxy('cleanup')
    },
  )
}

t.test(
  'FL01: in ebpf mode a call that is refused at the socket is counted once and has a line',
  { skip },
  async (t) => {
    const daemon = await startProxy(t, [...flagsOf('ebpf'), '--flows-state-file='])
    // The shell opens the connection itself, so its number is that of the caller.
    const call = `echo $$ > ${cgroup}/cgroup.procs; echo $$; exec 3<>/dev/tcp`
    const callers = [
      ...Array.from({ length: 3 }, () => ({ name: 'empty', host: '10.96.0.11' })),
      ...Array.from({ length: 2 }, () => ({ name: 'empty6', host: 'fd00:10:96::11' })),
    ].map((asked) => ({
      ...asked,
      ...spawnSync('bash', ['-c', `${call}/${asked.host}/80`], { encoding: 'utf8' }),
    }))
    for (const { stderr } of callers) t.match(stderr, /Connection refused/)
    const told = await until(
      () => flowsOf('--verdict', 'no-endpoints'),
      ({ length }) => length >= callers.length,
    )
    t.same(
      told.map(({ service, address, client, why }) => [service, address, client, why]),
      callers.map(({ name, host, stdout }) => [
        ...[`default/${name}:http`, hostPort(host, 80), ''],
        `process ${stdout.trim()}`,
      ]),
    )
    t.equal((await numbersOf('default/empty:http'))?.errors, 3)
    t.equal((await numbersOf('default/empty6:http'))?.errors, 2, 'of IPv6')
    t.match(
      (await kubeProxy('flows')).stdout,
      / - +default\/empty:http +- +no-endpoints +ended, process/,
    )
    await daemon.end('SIGTERM')
    await kubeProxy('cleanup')
  },
)

/** What a client in the cgroup asks, and the address that the lines show. */
const asked = [
  { name: 'web', host: '10.96.0.10', connections: 20, address: '10.96.0.10:80' },
  { name: 'web', host: '::ffff:10.96.0.10', connections: 8, address: '10.96.0.10:80' },
  { name: 'web6', host: 'fd00:10:96::10', connections: 15, address: '[fd00:10:96::10]:80' },
] as const

t.test(
  'FL01: in ebpf mode a connection that is translated at its socket has a line when it is opened and one at its end',
  { skip },
  async (t) => {
    const seen = await startServers(t)
    const daemon = await startProxy(t, [...flagsOf('ebpf'), '--flows-state-file='])
    const client = startCgroupClient(cgroup)
    t.teardown(() => client.close())
    const exchange: Omit<Exchange, 'host' | 'connections'> = {
      ...{ do: 'exchange', port: 80, request: 5, answer: 3, end: 'after' },
    }
    for (const { host, connections } of asked) {
      const outcome = await client.ask({ ...exchange, host, connections })
      t.same(outcome, { name: String(connections) }, host)
    }
    for (const host of ['10.96.0.15', '10.96.0.15', '10.96.0.11']) {
      const outcome = await client.ask({ do: 'connect', host, port: 80 })
      t.same(outcome, { error: 'ECONNREFUSED' }, host)
    }
    // All of them are among the newest hundred.
    const lines = 2 * seen.length + 3
    const told = await until(flowsOf, ({ length }) => length >= lines)
    t.equal(told.length, lines, 'each once')
    const [opened, ended, refused] = [
      told.filter(({ event }) => event === 'opened'),
      told.filter(({ event, verdict }) => event === 'ended' && verdict === 'forwarded'),
      told.filter(({ verdict }) => verdict !== 'forwarded'),
    ]
    const wanted = asked.flatMap(({ connections, name, address }) =>
      Array<string>(connections).fill(`default/${name}:http ${address} forwarded TCP`),
    )
    for (const lines of [opened, ended]) {
      t.same(lines.map(({ client, endpoint }) => `${client} ${endpoint}`).sort(), [...seen].sort())
      const said = lines.map(({ service, address, verdict, protocol }) =>
        [service, address, verdict, protocol].join(' '),
      )
      t.same(said.sort(), wanted.sort())
    }
    t.same(
      ended.map(({ bytesToEndpoint, bytesToClient }) => [bytesToEndpoint, bytesToClient]),
      ended.map(() => [5, 3]),
    )
    t.ok(ended.every(({ durationMs = -1 }) => durationMs >= 0 && durationMs < 600_000))
    t.same(
      refused
        .map(({ service, address, endpoint, verdict, event }) =>
          [service, address, endpoint, verdict, event].join(' '),
        )
        .sort(),
      [
        'default/empty:http 10.96.0.11:80  no-endpoints ended',
        ...Array<string>(2).fill('default/shut:http 10.96.0.15:80 192.0.2.1:8080 refused ended'),
      ],
    )
    t.match((await kubeProxy('flows')).stderr, /^$/, 'nothing is left out')
    await daemon.end('SIGTERM')
    await kubeProxy('cleanup')
  },
)

t.test('the stream tells of every connection what its client saw', { skip }, async (t) => {
  await startServers(t)
  const { bodies } = await startCollector(t)
  const toCollector = ['--flows-otlp-endpoint', 'http://127.0.0.1:4318']
  // Otherwise it would go on with the numbers of the test before.
  const alone = [...flagsOf('nftables'), '--flows-state-file=']
  const daemon = await startProxy(t, [...alone, ...toCollector])
  await untilHeard()
  await visits(3, '10.96.0.10')
  // A connection of the test before may end meanwhile, and has a line for that.
  const opened = async (...args: readonly string[]) =>
    (await flowsOf(...args)).filter(({ event }) => event === 'opened')
  const flows = await until(
    () => opened('web'),
    (lines) => lines.length >= 3,
  )
  t.equal(flows.length, 3)
  for (const { event, verdict, service, address, client, endpoint, endpointPod } of flows) {
    t.same(
      { event, verdict, service, address },
      {
        event: 'opened',
        verdict: 'forwarded',
        service: 'default/web:http',
        address: '10.96.0.10:80',
      },
    )
    t.match(client, /^10\.96\.0\.10:|^192\.0\.2\.1:|^10\.244|^127/)
    t.equal(endpointPod, `default/web-${endpoint === '10.244.1.1:8080' ? 0 : 1}`)
  }
  t.same(await flowsOf('default/empty'), [])
  t.same(await flowsOf('--verdict', 'dropped'), [])
  t.equal((await opened('--from', '0.0.0.0/0')).length, 3)
  t.same(await flowsOf('--from', '198.51.100.1'), [])
  t.match(
    (await kubeProxy('top')).stdout,
    /default\/web:http +\d+ +3 /,
    'top shows the same number',
  )
  await daemon.end('SIGTERM')
  const logged = bodies.filter((body) => body.startsWith('/v1/logs')).join()
  t.equal(logged.match(/"stringValue":"opened"/g)?.length, 3, 'all are sent before it ends')
  t.ok(bodies.some((body) => body.startsWith('/v1/metrics')))
  const refused = await startProxy(t, [...flagsOf('nftables'), '--flows=false'])
  const { code, stderr } = await kubeProxy('flows')
  t.equal(code, 2)
  t.match(stderr, /start it with --flows/)
  await refused.end('SIGTERM')
  await kubeProxy('cleanup')
})

t.test('FL01: userspace mode tells of the connections that it carries', { skip }, async (t) => {
  await startServers(t)
  const daemon = await startProxy(t, flagsOf('userspace'))
  t.same(await visits(3, '10.96.0.10'), Array<string>(3).fill('answered'))
  t.same(await visits(1, '10.96.0.11'), ['refused'], 'by a rule, of which nothing is told')
  const flows = await until(flowsOf, (lines) => lines.length >= 3)
  t.same(
    flows.map(({ service, verdict }) => `${service} ${verdict}`),
    Array<string>(3).fill('default/web:http forwarded'),
  )
  t.same(flows[0] && [flows[0].bytesToEndpoint, flows[0].bytesToClient], [5, 3])
  await daemon.end('SIGTERM')
  await kubeProxy('cleanup')
})
