import { execFileSync, spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { loadLibc, allocateNative } from '../lib/kernel/sockets/libc.js'
import { encodeAddress } from '../lib/kernel/sockets/socket-address.js'
import { daemonNumbers } from '../lib/inspect/top/daemon-numbers.js'
import { cpuMilliseconds, residentMib } from './support/process-usage.js'
import { startIn, stop } from './support/lane.js'
import type { BenchResults } from './support/results.js'
import { ports } from './support/services.js'
import { measureWays, type Way } from './support/ways.js'

/**
 * What --flows costs: two namespaces with a proxy in nftables mode, one of them with --flows. Rounds
 * of new UDP flows go to both in turn, because a machine is not as fast from minute to minute.
 */

const services = 40
const sockets = 1000
/** The rate of new flows. It is fixed, because many flows at once cost less for each. */
const flowsPerSecond = 10_000
const rounds = 9
const flowsPerRound = services * sockets
const endpoint = '10.244.1.1'
const tcpAddress = '10.96.2.1'
const firstPort = 8000
const main = fileURLToPath(new URL('../lib/cli/main.js', import.meta.url))

interface Side {
  readonly name: string
  readonly namespace: string
  readonly proxy: ChildProcess
  readonly server: ChildProcess
  readonly senderUs: number[]
  readonly proxyUs: number[]
}

export async function run(): Promise<BenchResults> {
  const folder = mkdtempSync(join(tmpdir(), 'bench-flows-'))
  const sides: Side[] = []
  try {
    mkdirSync(join(folder, 'objects'))
    writeFileSync(join(folder, 'objects', 'services.yaml'), manifests())
    for (const name of ['without', 'with']) sides.push(await startSide(name, folder))
    for (let round = 0; round < rounds; round++) {
      for (const side of round % 2 === 0 ? sides : sides.toReversed()) await measure(side)
    }
    return [
      ...(await resultsOf(sides)),
      ...(await measureWays(waysOf(sides), { enter: [], targets: {} })),
    ]
  } finally {
    for (const { proxy, server, namespace } of sides) {
      for (const child of [proxy, server]) await stop(child)
      execFileSync('ip', ['netns', 'delete', namespace])
    }
    rmSync(folder, { recursive: true })
  }
}

/** The way without --flows comes twice: the difference between the two is noise. */
const waysOf = (sides: readonly Side[]): readonly Way[] =>
  [
    ...sides,
    ...sides.slice(0, 1).map((side) => ({ ...side, name: `${side.name}, once more` })),
  ].map(({ name, namespace }) => ({ name, namespace, ip: tcpAddress }))

async function startSide(name: string, folder: string): Promise<Side> {
  const namespace = `bench-flows-${name}-${process.pid}`
  execFileSync('ip', ['netns', 'add', namespace])
  const inside = (file: string, ...args: string[]) =>
    execFileSync('ip', ['netns', 'exec', namespace, file, ...args], { stdio: 'ignore' })
  inside('ip', 'link', 'set', 'lo', 'up')
  inside('ip', 'address', 'add', `${endpoint}/32`, 'dev', 'lo')
  inside('ip', 'route', 'add', 'default', 'dev', 'lo')
  // Flows end soon, so that a round also pays for the end of its flows.
  inside('sysctl', '-w', 'net.netfilter.nf_conntrack_udp_timeout=1')
  const flags = [
    ...[
      '--proxy-mode',
      'nftables',
      '--manifests',
      join(folder, 'objects'),
      '--hostname-override',
      'node-1',
    ],
    ...['--cluster-cidr', '10.244.0.0/16', '--conntrack-udp-timeout', '0s'],
    ...(name === 'with' ? ['--flows', '--flows-state-file', join(folder, 'flows.json')] : []),
  ]
  const argv = ['netns', 'exec', namespace, process.execPath, main, ...flags]
  const proxy = spawn('ip', argv, { stdio: ['ignore', 'ignore', 'inherit'] })
  while (!(await metrics(namespace)).includes('kubeproxy_first_sync_seconds{')) await delay(100)
  const loadServer = fileURLToPath(new URL('./support/load-server.js', import.meta.url))
  const server = await startIn(namespace, [process.execPath, loadServer, endpoint])
  return { name, namespace, proxy, server, senderUs: [], proxyUs: [] }
}

async function metrics(namespace: string): Promise<string> {
  const code = `process.stdout.write(await fetch('http://127.0.0.1:10249/metrics').then((answer) => answer.text(), () => ''))`
  const argv = ['netns', 'exec', namespace, process.execPath, '--input-type=module', '-e', code]
  const child = spawn('ip', argv, { stdio: ['ignore', 'pipe', 'inherit'] })
  let text = ''
  child.stdout.setEncoding('utf8').on('data', (part: string) => (text += part))
  await once(child, 'close')
  return text
}

async function measure({ namespace, proxy, senderUs, proxyUs }: Side): Promise<void> {
  const pid = proxy.pid ?? 0
  const before = cpuMilliseconds(pid)
  const file = fileURLToPath(import.meta.url)
  const code = `await (await import(${JSON.stringify(file)})).sendFlows()`
  const argv = ['netns', 'exec', namespace, process.execPath, '--input-type=module', '-e', code]
  senderUs.push(Number(execFileSync('ip', argv, { encoding: 'utf8' })))
  // About every second the kernel looks for flows that have ended.
  await delay(4_000)
  proxyUs.push(((cpuMilliseconds(pid) - before) * 1000) / flowsPerRound)
}

/** Runs in the namespace: prints the processor time of one new flow, in microseconds. */
export async function sendFlows(): Promise<void> {
  const libc = await loadLibc()
  const address = allocateNative(libc, 16)
  const payload = allocateNative(libc, 8)
  const open = Array.from({ length: sockets }, () => libc.socket(2, 2, 0))
  address.view.setUint16(0, 2, true)
  address.view.setUint16(2, 53)
  // Nobody reads from these sockets. Without them the kernel refuses datagrams, and sending fails.
  const sink = allocateNative(libc, 16)
  for (let service = 0; service < services; service++) {
    sink.bytes.set(encodeAddress({ ip: endpoint, port: firstPort + service }))
    libc.bind(libc.socket(2, 2, 0), sink.address, 16)
  }
  const began = process.cpuUsage()
  let failed = 0
  const start = performance.now()
  for (let sent = 0; sent < flowsPerRound;) {
    const due = ((performance.now() - start) * flowsPerSecond) / 1000
    for (; sent < Math.min(due, flowsPerRound); sent++) {
      const service = Math.floor(sent / sockets)
      address.view.setUint32(4, (10 << 24) + (96 << 16) + (1 << 8) + service)
      libc.connect(open[sent % sockets] ?? -1, address.address, 16)
      if (libc.send(open[sent % sockets] ?? -1, payload.address, 8, 0) !== 8) failed++
    }
    await delay(10)
  }
  const { user, system } = process.cpuUsage(began)
  if (failed > 0) throw new Error(`${failed} of ${flowsPerRound} datagrams were not sent`)
  process.stdout.write(String((user + system) / flowsPerRound))
}

async function resultsOf(sides: readonly Side[]): Promise<BenchResults> {
  const [without, withFlows] = sides
  if (!without || !withFlows) throw new Error('there are two sides')
  const page = await metrics(withFlows.namespace)
  const counted = [...daemonNumbers(page).values()].reduce((sum, one) => sum + one.total, 0)
  const median = (values: readonly number[]) =>
    values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? NaN
  const kernel = median(withFlows.senderUs) - median(without.senderUs)
  const proxy = median(withFlows.proxyUs) - median(without.proxyUs)
  const memory = (side: Side) => residentMib(side.proxy.pid ?? 0)
  console.table(
    sides.map((side) => ({
      flows: side.name,
      'sender us a flow': median(side.senderUs).toFixed(2),
      'proxy us a flow': median(side.proxyUs).toFixed(2),
      'proxy MiB': memory(side).toFixed(0),
    })),
  )
  const share = (us: number) => ((us * flowsPerSecond) / 1e6) * 100
  return [
    {
      name: 'flows counted, of those made',
      value: counted / (rounds * flowsPerRound),
      unit: 'x',
      target: '>= 1',
    },
    {
      name: 'a new UDP flow, with / without',
      value: median(withFlows.senderUs) / median(without.senderUs),
      unit: 'x',
      note: 'processor time of the sender, with its share of the kernel',
    },
    {
      name: 'of a core for the sender, at 10,000 new flows a second',
      value: share(kernel),
      unit: '%',
    },
    {
      name: 'of a core for the proxy, at 10,000 new flows a second',
      value: share(proxy),
      unit: '%',
      target: '<= 3',
    },
    { name: 'memory of the proxy', value: memory(withFlows) - memory(without), unit: 'MiB' },
  ]
}

function manifests(): string {
  const udp = Array.from({ length: services }, (_, index) =>
    // A port for each, so that NAT need not look for free ports.
    objectsOf(`udp-${index}`, `10.96.1.${index}`, [
      { protocol: 'UDP', port: 53, target: firstPort + index },
    ]),
  )
  const tcp = [ports.short[0], ports.echo].map((port) => ({
    ...{ name: `tcp-${port}`, protocol: 'TCP', port, target: port },
  }))
  return [...udp, objectsOf('tcp', tcpAddress, tcp)]
    .flatMap((pair) => pair.map((each) => JSON.stringify(each)))
    .join('\n---\n')
}

interface Port {
  readonly name?: string
  readonly protocol: string
  readonly port: number
  readonly target: number
}

function objectsOf(name: string, clusterIP: string, all: readonly Port[]): readonly object[] {
  const named = all.map((port) => ({ name: '', ...port }))
  return [
    {
      ...{ apiVersion: 'v1', kind: 'Service', metadata: { name, namespace: 'default' } },
      spec: {
        ...{ clusterIP, clusterIPs: [clusterIP] },
        ports: named.map(({ target: _, ...port }) => port),
      },
    },
    {
      ...{ apiVersion: 'discovery.k8s.io/v1', kind: 'EndpointSlice', addressType: 'IPv4' },
      metadata: {
        ...{ name, namespace: 'default', labels: { 'kubernetes.io/service-name': name } },
      },
      ports: named.map(({ target, ...port }) => ({ ...port, port: target })),
      endpoints: [{ addresses: [endpoint], conditions: { ready: true } }],
    },
  ]
}
