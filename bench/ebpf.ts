import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { daemonNumbers, sumOf, type DaemonNumbers } from '../lib/inspect/top/daemon-numbers.js'
import { mountOf } from '../lib/kernel/cgroup.js'
import { runCommand } from '../lib/kernel/command.js'
import type { CountOrder, CountResult } from './support/count-client.js'
import type { ScaleResult } from './support/ebpf-scale.js'
import { lane, serverAddress, startIn, stop, withLane } from './support/lane.js'
import type { BenchResult, BenchResults } from './support/results.js'
import { ports, requestBytes, responseBytes } from './support/services.js'
import { measureWays } from './support/ways.js'

const serviceAddress = '10.81.3.10'
const connections = Number(process.env['BENCH_CONNECTIONS'] ?? 60_000)

/** The places of the measurement: a bpffs, a cgroup with programs, and a cgroup without them. */
interface Places {
  readonly folder: string
  readonly bpffs: string
  readonly inside: string
  readonly outside: string
}

/** Connections translated at the socket, beside direct ones and those that nftables translates. */
export async function run(): Promise<BenchResults> {
  const results: BenchResult[] = []
  await withPlaces(async (places) => {
    results.push(...(await scaleResults(places)))
    await withLane(async () => {
      const here = fileURLToPath(new URL('./support/load-server.js', import.meta.url))
      const server = await startIn(lane.servers, [process.execPath, here, serverAddress])
      try {
        results.push(...(await trafficResults(places)))
      } finally {
        await stop(server)
      }
    })
  })
  return results
}

async function withPlaces(use: (places: Places) => Promise<void>): Promise<void> {
  const root = mountOf('cgroup2')
  if (root === undefined) throw new Error('cgroup2 is not mounted here')
  const folder = mkdtempSync(join(tmpdir(), 'bench-ebpf-'))
  const places: Places = {
    folder,
    bpffs: join(folder, 'bpffs'),
    inside: join(root, `bench-ebpf-${process.pid}`),
    outside: join(root, `bench-ebpf-${process.pid}-beside`),
  }
  for (const each of [places.bpffs, places.inside, places.outside]) mkdirSync(each)
  execFileSync('mount', ['-t', 'bpf', 'bpf', places.bpffs])
  try {
    await use(places)
  } finally {
    execFileSync('umount', [places.bpffs])
    for (const each of [places.inside, places.outside]) rmdirSync(each)
    rmSync(folder, { recursive: true })
  }
}

async function scaleResults({ inside }: Places): Promise<BenchResults> {
  const measured: Record<string, ScaleResult> = {}
  for (const what of ['sockets', 'nftables', 'ebpf']) {
    const script = fileURLToPath(new URL('./support/ebpf-scale.js', import.meta.url))
    const argv = ['--net', process.execPath, '--expose-gc', script, what, inside]
    const { stdout, stderr, code } = await runCommand('unshare', argv)
    if (code !== 0) throw new Error(`${what}: ${stderr}`)
    measured[what] = JSON.parse(stdout) as ScaleResult
  }
  console.table(measured)
  const { sockets, nftables, ebpf } = measured
  const more = (ebpf?.residentMib ?? NaN) + (ebpf?.mapsMib ?? NaN) - (nftables?.residentMib ?? NaN)
  const at = 'sockets, 5,000 Services x 10'
  return [
    {
      ...{ name: `${at}: load`, value: sockets?.loadMs ?? NaN, unit: 'ms', target: '<= 300' },
      note: `of it ${(sockets?.loadCpuMs ?? NaN).toFixed(0)} of processors' time`,
    },
    { name: `${at}: change p50`, value: sockets?.p50Ms ?? NaN, unit: 'ms', target: '<= 1' },
    { name: `${at}: change p99`, value: sockets?.p99Ms ?? NaN, unit: 'ms' },
    {
      name: '5,000 Services x 10: more memory than nftables mode',
      value: more,
      unit: 'MiB',
      target: '<= 25',
      note: `of it ${(ebpf?.mapsMib ?? NaN).toFixed(1)} in maps`,
    },
  ]
}

async function trafficResults(places: Places): Promise<BenchResults> {
  writeFileSync(join(places.folder, 'service.yaml'), manifests())
  let daemon = await startDaemon(places)
  try {
    const ways = await waysOf(places)
    const before = await numbers()
    const result = count({
      ...{ cgroup: places.inside, ip: serviceAddress, port: ports.short[0] },
      ...{ connections, atOnce: 20 },
    })
    let restarts = 0
    while (!(await Promise.race([result.then(() => true), delay(300, false)]))) {
      await stop(daemon)
      daemon = await startDaemon(places)
      restarts++
    }
    const { good, failed, seconds } = await result
    const after = await numbers()
    console.log({ good, failed, seconds, restarts, before, after })
    return [...ways, ...countResults({ good, failed }, restarts, differenceOf(before, after))]
  } finally {
    await stop(daemon)
  }
}

function countResults(
  { good, failed }: Pick<CountResult, 'good' | 'failed'>,
  restarts: number,
  counted: Pick<DaemonNumbers, 'total' | 'bytesIn' | 'bytesOut'>,
): BenchResults {
  const all = `${connections.toLocaleString('en-US')} connections`
  const off =
    Math.abs(counted.total - good) +
    Math.abs(counted.bytesIn - good * requestBytes) +
    Math.abs(counted.bytesOut - good * responseBytes)
  const note = `the proxy was killed and started ${restarts} times meanwhile`
  return [
    { name: `${all}: failed`, value: failed, unit: '', target: '<= 0', note },
    {
      name: `${all}: connections and bytes that were counted wrong`,
      value: off,
      unit: '',
      target: '<= 0',
      note,
    },
  ]
}

const differenceOf = (before: DaemonNumbers, after: DaemonNumbers) => ({
  total: after.total - before.total,
  bytesIn: after.bytesIn - before.bytesIn,
  bytesOut: after.bytesOut - before.bytesOut,
})

/** Ratios to a direct connection of the same round, from outside of the cgroup. */
const waysOf = ({ inside, outside }: Places): Promise<BenchResults> =>
  measureWays(
    [
      { name: 'direct', cgroup: outside, ip: serverAddress },
      { name: 'ebpf', cgroup: inside, ip: serviceAddress },
      { name: 'nftables', cgroup: outside, ip: serviceAddress },
      { name: 'direct, with programs', cgroup: inside, ip: serverAddress },
    ],
    { enter: ['nsenter', ...inLane(lane.clients)], targets: { ebpf: '<= 1.05' } },
  )

async function count(order: CountOrder): Promise<CountResult> {
  const script = fileURLToPath(new URL('./support/count-client.js', import.meta.url))
  const argv = [...inLane(lane.clients), process.execPath, script, JSON.stringify(order)]
  const { stdout, stderr, code } = await runCommand('nsenter', argv, { timeoutMs: 300_000 })
  if (code !== 0) throw new Error(`count: ${stderr}`)
  return JSON.parse(stdout) as CountResult
}

/** Unlike `ip netns exec` this leaves /sys as it is, with cgroups in it. */
const inLane = (name: string) => [`--net=/run/netns/${name}`]

async function startDaemon({ folder, bpffs, inside }: Places): Promise<ChildProcess> {
  const main = fileURLToPath(new URL('../lib/cli/main.js', import.meta.url))
  const flags = [
    ...['--proxy-mode', 'ebpf', '--proxy-mode-fallback', 'none', '--manifests', folder],
    ...['--ebpf-cgroup', inside, '--ebpf-bpffs', bpffs, '--hostname-override', 'node-1'],
    ...['--cluster-cidr', '10.81.1.0/24'],
  ]
  const argv = [...inLane(lane.node), process.execPath, main, ...flags]
  const child = spawn('nsenter', argv, { stdio: ['ignore', 'ignore', 'ignore'] })
  const ended = once(child, 'exit')
  while (child.exitCode === null) {
    const page = await pageOf('10256/readyz')
    if (page !== undefined) return child
    await Promise.race([ended, delay(50)])
  }
  throw new Error('the proxy ended before it was ready')
}

/** Undefined while nobody answers. */
async function pageOf(place: string): Promise<string | undefined> {
  const url = `http://127.0.0.1:${place}`
  const { stdout, code } = await runCommand('nsenter', [...inLane(lane.node), 'curl', '-sf', url])
  return code === 0 ? stdout : undefined
}

async function numbers(): Promise<DaemonNumbers> {
  const all = daemonNumbers((await pageOf('10249/metrics')) ?? '')
  return sumOf(all.get('default/load:short/TCP'))
}

function manifests(): string {
  const port = (name: string, number: number) =>
    `- { name: ${name}, protocol: TCP, port: ${number} }`
  const all = [port('short', ports.short[0]), port('echo', ports.echo)].join('\n  ')
  return `apiVersion: v1
kind: Service
metadata: { name: load, namespace: default }
spec:
  clusterIP: ${serviceAddress}
  ports:
  ${all}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: load-1
  namespace: default
  labels: { kubernetes.io/service-name: load }
addressType: IPv4
ports:
${[port('short', ports.short[0]), port('echo', ports.echo)].join('\n')}
endpoints:
- { addresses: [${serverAddress}], conditions: { ready: true } }
`
}
