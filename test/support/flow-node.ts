/** A node with Services and servers. Its tests compare what clients saw with what flows report. */
import { spawn } from 'node:child_process'
import { createServer, connect } from 'node:net'
import { mkdtempSync, readlinkSync, rmSync, writeFileSync } from 'node:fs'
import { once } from 'node:events'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { daemonNumbers } from '../../lib/inspect/top/daemon-numbers.js'
import { hostPort } from '../../lib/state/ip.js'
import type { FlowRecord } from '../../lib/observe/flows/answer.js'
import { endpoint, rawService, rawSlice } from '../state/objects.js'
import { commandThread } from './command-thread.js'
import { kubeProxy as kubeProxyProgram, startProxy } from './live-daemon.js'
import { runCommand } from './run-command.js'
import { enterPrivateNetns } from './private-netns.js'
import { patienceMs, until as untilSo } from './until.js'
import { execSync } from './run-sync.js'

export const skip = enterPrivateNetns() ?? false
/** Runs commands of the program beside the daemon. */
export const kubeProxy = commandThread()
const folder = mkdtempSync(join(tmpdir(), 'flows-'))
t.teardown(() => rmSync(folder, { recursive: true }))
if (skip === false) {
  execSync('sysctl', ['-qw', 'net.ipv4.ip_forward=1'])
  execSync('ip', ['link', 'set', 'lo', 'up'])
  execSync('ip', ['address', 'add', '192.0.2.1/24', 'dev', 'lo'])
  execSync('ip', ['route', 'add', 'default', 'dev', 'lo'])
  // A client does not hear over lo that it is refused.
  execSync('ip', ['link', 'add', 'out', 'type', 'veth', 'peer', 'name', 'beyond'])
  execSync('ip', ['link', 'set', 'out', 'up'])
  execSync('ip', ['address', 'add', '2001:db8::1/128', 'dev', 'lo', 'nodad'])
  for (const [ip, from] of [
    ['10.96.0.11/32', '192.0.2.1'],
    ['203.0.113.2/32', '192.0.2.1'],
    ['fd00:10:96::11/128', '2001:db8::1'],
  ] as const) {
    execSync('ip', ['route', 'add', ip, 'dev', 'out', 'src', from])
  }
  for (const ip of ['10.244.1.1', '10.244.1.2']) {
    execSync('ip', ['address', 'add', `${ip}/32`, 'dev', 'lo'])
  }
}

/** The words before a program that runs it on another machine. */
const beyond = skip === false ? await createBeyond() : undefined

/** Makes another machine: a namespace that ends with the process that holds it. */
async function createBeyond(): Promise<readonly string[]> {
  const holder = spawn('unshare', ['-n', 'sleep', '7200'])
  t.teardown(() => holder.kill())
  const pid = String(holder.pid)
  const namespace = (of: string) => readlinkSync(`/proc/${of}/ns/net`)
  while (namespace(pid) === namespace('thread-self')) await delay(10)
  const inside = ['nsenter', '-t', pid, '-n']
  const [enter = '', ...rest] = inside
  const ip = (...words: string[]) => execSync('ip', words)
  const ipInside = (words: string) => execSync(enter, [...rest, 'ip', ...words.split(' ')])
  ip('link', 'set', 'beyond', 'netns', pid)
  ipInside('link set beyond up')
  for (const prefix of ['198.18.0', '198.51.100']) {
    ip('address', 'add', `${prefix}.1/24`, 'dev', 'out')
    ipInside(`address add ${prefix}.7/24 dev beyond`)
  }
  ipInside('route add default via 198.18.0.1')
  return inside
}

const service = (name: string, clusterIP: string, spec: object = {}, status = {}) => {
  const ports = [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080 }]
  return rawService({ name, spec: { clusterIP, clusterIPs: [clusterIP], ports, ...spec }, status })
}
const nodePort = (at: number) => ({
  type: 'NodePort',
  ports: [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080, nodePort: at }],
})
/** A load balancer that serves the clients of one range only. */
const guardedBalancer = (name: string, clusterIP: string, ip: string) =>
  service(
    name,
    clusterIP,
    { type: 'LoadBalancer', loadBalancerSourceRanges: ['198.51.100.0/24'] },
    { loadBalancer: { ingress: [{ ip }] } },
  )
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
  service('names', '10.96.0.17', {
    ports: [{ name: 'dns', protocol: 'UDP', port: 53, targetPort: 5353 }],
  }),
  rawSlice({
    ...{ name: 'names', service: 'names', endpoints: [endpoint('192.0.2.1')] },
    ports: [{ name: 'dns', protocol: 'UDP', port: 5353 }],
  }),
  service('empty', '10.96.0.11', nodePort(30081)),
  service('empty6', 'fd00:10:96::11', { ipFamilies: ['IPv6'] }),
  service('early', '10.96.0.14'),
  service('away', '10.96.0.12', { internalTrafficPolicy: 'Local' }),
  onNode2('away'),
  guardedBalancer('guarded', '10.96.0.13', '203.0.113.1'),
  onNode2('guarded'),
  guardedBalancer('hollow', '10.96.0.16', '203.0.113.2'),
]
writeFileSync(
  join(folder, 'objects.yaml'),
  documents.map((each) => JSON.stringify(each)).join('\n---\n'),
)

export const flagsOf = (mode: string) => [
  ...['--proxy-mode', mode, '--manifests', folder, '--hostname-override', 'node-1'],
  ...['--cluster-cidr', '10.244.0.0/16', '--flows'],
  ...['--flows-state-file', join(folder, `${mode}.json`)],
]

/**
 * Servers that send 3 bytes and close. Returns the addresses of clients and servers as they come.
 */
export async function startServers(t: Test): Promise<readonly string[]> {
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

/** This is long enough for the kernel to send an unanswered packet a second time. */
const silenceMs = 1500

interface Visit {
  /** The client's own address is added. */
  readonly from?: string[] | undefined
  /** Without one the kernel chooses. */
  readonly localPort?: number
  readonly withinMs?: number
}

function visit(host: string, port: number, how: Visit = {}): Promise<Outcome> {
  const { from, localPort = 0, withinMs = patienceMs } = how
  return new Promise((resolve) => {
    const socket = connect({ port, host, localPort }, () => {
      from?.push(hostPort(socket.localAddress ?? '', socket.localPort ?? 0))
      socket.write('hello')
    })
    let answer = ''
    socket.setTimeout(withinMs, () => {
      resolve('silence')
      socket.destroy()
    })
    socket.on('data', (data) => (answer += data.toString()))
    socket.on('error', () => resolve('refused'))
    socket.on('close', () => resolve(answer === 'yes' ? 'answered' : 'refused'))
  })
}

export async function visits(
  count: number,
  host: string,
  to = 80,
  from?: string[],
): Promise<readonly Outcome[]> {
  const outcomes: Outcome[] = []
  for (let made = 0; made < count; made++) outcomes.push(await visit(host, to, { from }))
  return outcomes
}

/** One visit after the other, each from one of these ports of the client. */
export async function visitsFrom(
  ports: readonly number[],
  host: string,
): Promise<readonly Outcome[]> {
  const outcomes: Outcome[] = []
  for (const port of ports) outcomes.push(await visit(host, 80, { localPort: port }))
  return outcomes
}

export const page = async () => (await fetch('http://127.0.0.1:10249/metrics')).text()

export const numbersOf = async (name: string) => daemonNumbers(await page()).get(`${name}/TCP`)

/** Waits until what is read is there. */
export async function until<T>(read: () => Promise<T>, isThere: (value: T) => boolean): Promise<T> {
  let value: T | undefined
  const told = () => `${String(isThere)}; last read: ${JSON.stringify(value)}`
  await untilSo(told, async () => isThere((value = await read())))
  return value as T
}

/** Waits until the daemon reports flows: the thread for them starts a moment after the rules. */
export async function untilHeard(): Promise<void> {
  const asked = async () => {
    await visit('10.96.0.14', 80, { withinMs: silenceMs })
    return flowsOf('early')
  }
  await until(asked, ({ length }) => length > 0)
}

export async function flowsOf(...args: readonly string[]): Promise<readonly FlowRecord[]> {
  const { stdout, stderr, code } = await kubeProxy('flows', ...args, '-o', 'json')
  if (code !== 0) throw new Error(stderr)
  return stdout
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as FlowRecord)
}

interface TurnedAway {
  readonly host: string
  readonly port?: number
  readonly name: string
  readonly verdict: FlowRecord['verdict']
  readonly why: string
  /** Absent: the client hears nothing. */
  readonly outcome?: Outcome
  /** The address of a client on another machine. */
  readonly from?: string
  /** The modes where this holds; absent: all. */
  readonly only?: readonly string[]
}

/**
 * The modes that check source ranges before they refuse. Iptables mode refuses every client of a
 * load balancer without endpoints. In the other modes the address is not the node's own, and then
 * ICMP does not come back to the client of this network.
 */
const rangesFirst = ['ipvs', 'userspace']

/** Connections that are not answered, and what the stream says of them. */
const turnedAway: readonly TurnedAway[] = [
  { host: '10.96.0.11', name: 'empty', verdict: 'no-endpoints', why: '', outcome: 'refused' },
  { host: 'fd00:10:96::11', name: 'empty6', verdict: 'no-endpoints', why: '', outcome: 'refused' },
  {
    ...{ host: '10.96.0.15', name: 'shut', verdict: 'refused', why: 'ECONNREFUSED' },
    ...{ outcome: 'refused', only: ['iptables', 'nftables', 'ebpf', 'ipvs'] },
  },
  {
    ...{ host: '10.96.0.12', name: 'away', verdict: 'dropped', why: 'no local endpoint' },
    // Without a local endpoint ipvs mode uses all endpoints, also with policy Local (IP25).
    only: ['iptables', 'nftables', 'ebpf', 'userspace'],
  },
  {
    ...{ host: '203.0.113.1', name: 'guarded', verdict: 'dropped' },
    why: 'not in loadBalancerSourceRanges',
  },
  {
    ...{ host: '198.18.0.1', port: 30081, name: 'empty', verdict: 'no-endpoints', why: '' },
    ...{ outcome: 'refused', from: '198.18.0.7' },
    // The other modes have node ports at the first address of the node only.
    only: ['iptables', 'ipvs', 'userspace'],
  },
  {
    ...{ host: '203.0.113.2', name: 'hollow', verdict: 'no-endpoints', why: '' },
    ...{ outcome: 'refused', from: '198.51.100.7', only: rangesFirst },
  },
  {
    ...{ host: '203.0.113.2', name: 'hollow', verdict: 'dropped', from: '198.18.0.7' },
    only: rangesFirst,
    why: 'not in loadBalancerSourceRanges',
  },
]

const each = 3

/** Clients on another machine, in one process. Each prints its outcome. */
const remoteClients = `
const [localAddress, host, port, withinMs, count] = process.argv.slice(1)
for (let made = 0; made < count; made++) {
  const socket = require('net').connect({ localAddress, host, port })
  socket.setTimeout(Number(withinMs), () => socket.destroy(console.log('silence')))
  socket.on('connect', () => socket.destroy(console.log('connected')))
  socket.on('error', ({ code }) => console.log(code === 'ECONNREFUSED' ? 'refused' : code))
}
`

/** The outcomes of so many attempts at the same time. */
async function attempts(
  count: number,
  { host, port = 80, from, outcome }: TurnedAway,
): Promise<readonly string[]> {
  const withinMs = outcome === undefined ? silenceMs : patienceMs
  if (from === undefined || !beyond)
    return Promise.all(Array.from({ length: count }, () => visit(host, port, { withinMs })))
  const [enter = '', ...rest] = beyond
  const numbers = [port, withinMs, count].map(String)
  const words = [process.execPath, '-e', remoteClients, from, host, ...numbers]
  return (await runCommand(enter, [...rest, ...words])).stdout.trim().split('\n')
}

/** Checks that lines and numbers of a daemon with these flags agree with clients and servers. */
export async function compareVerdicts(t: Test, mode: string, flags: readonly string[]) {
  const seen = await startServers(t)
  const daemon = await startProxy(t, [...flags, '--flows-state-file='])
  await untilHeard()
  const clients: string[] = []
  t.same(await visits(each, '10.96.0.10', 80, clients), Array<string>(each).fill('answered'))
  const asked = turnedAway.filter(({ only }) => only?.includes(mode) ?? true)
  const begun = new Map<string, number>()
  for (const wanted of asked) {
    const { name, host, from = 'this node', outcome = 'silence' } = wanted
    const service = `default/${name}:http`
    if (!begun.has(service)) begun.set(service, Date.now())
    const outcomes = await attempts(each, wanted)
    t.same(outcomes, Array<string>(each).fill(outcome), `${host} from ${from}`)
  }
  // The kernel reports an end later, so that ends of other tests' connections come in between.
  const told = mode === 'userspace' ? 'ended' : 'opened'
  // A connection that an endpoint refuses was forwarded first, and has a line that says so.
  const isOwn = ({ event, verdict, service }: FlowRecord) =>
    service !== 'default/early:http' &&
    ((event === told && service !== 'default/shut:http') || verdict !== 'forwarded')
  const lines = await until(
    async () => (await flowsOf()).filter(isOwn),
    ({ length }) => length >= (1 + asked.length) * each,
  )
  const said = lines.map(({ service, address, verdict, why }) =>
    [service, address, verdict, why].join(' '),
  )
  const web: TurnedAway = { host: '10.96.0.10', name: 'web', verdict: 'forwarded', why: '' }
  const all = [web, ...asked].map(({ host, port = 80, name, verdict, why }) => {
    // The proxy does not know the address of a redirected connection.
    const address = mode === 'userspace' && name === 'web' ? '' : hostPort(host, port)
    return `default/${name}:http ${address} ${verdict} ${why}`
  })
  t.same(said.sort(), all.flatMap((line) => Array<string>(each).fill(line)).sort())
  const forwarded = lines.filter(({ verdict }) => verdict === 'forwarded')
  t.same(forwarded.map(({ client }) => client).sort(), clients.sort(), 'from the client itself')
  t.same(
    forwarded.map(({ endpoint }) => endpoint).sort(),
    seen.map((line) => line.split(' ')[1]).sort(),
    'to the endpoint that answered',
  )
  const early = lines.filter(({ service, time }) => Date.parse(time) < (begun.get(service) ?? 0))
  t.same(early, [], 'none has a time before it was made')
  for (const service of begun.keys()) {
    // The numbers do not count connections that an endpoint refuses.
    if (service === 'default/shut:http') continue
    const times = asked.filter(({ name }) => service === `default/${name}:http`).length
    t.equal((await numbersOf(service))?.errors, times * each, service)
  }
  const web80 = await until(
    () => numbersOf('default/web:http'),
    (numbers) => (numbers?.total ?? 0) >= each,
  )
  t.equal(web80?.total, each)
  // In userspace mode it reads files, and threads of Node that do so may have begun in another network.
  const { stdout, code } = await (mode === 'userspace' ? kubeProxyProgram : kubeProxy)('diff')
  t.equal(code, 0, stdout)
  await daemon.end('SIGTERM')
  await kubeProxy('cleanup')
}
