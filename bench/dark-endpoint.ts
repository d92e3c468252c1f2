import { setTimeout as delay } from 'node:timers/promises'
import { addressOf } from '../lib/lab/world/topology.js'
import type { World } from '../lib/lab/world/world.js'
import { inCluster, service, slice, startProxy } from './support/bench-cluster.js'
import type { BenchCluster } from './support/bench-cluster.js'
import type { BenchResult, BenchResults } from './support/results.js'

const modes = (process.env['BENCH_MODES'] ?? 'nftables,iptables,userspace,ebpf').split(',')
const clusterIp = '10.96.250.20'
const pods = ['pod-1', 'pod-2', 'pod-3', 'pod-4', 'pod-5'] as const
const ports = [8080, 8081] as const
/** fall x interval + time-out: after this the checks have found the dark endpoint. */
const noticedMs = 2 * 1000 + 500
const checks = {
  'kube-proxy-ts/health-check': 'tcp',
  'kube-proxy-ts/health-check-interval': '1s',
  'kube-proxy-ts/health-check-timeout': '500ms',
  'kube-proxy-ts/health-check-fall': '2',
}
/** A client waits no longer for its answer. */
const patienceMs = 1000
const everyMs = 20
const watchedMs = 10_000

/** The share of requests that fail once one of ten endpoints drops every packet, in each mode. */
export async function run(): Promise<BenchResults> {
  const results: BenchResult[] = []
  for (const mode of modes) {
    for (const isChecked of [false, true]) {
      const act = (cluster: BenchCluster) => measure(cluster, mode, isChecked)
      const { first, later } = await inCluster(0, act, { withCgroup: mode === 'ebpf' })
      const name = `${mode}, ${isChecked ? 'with' : 'without'} checks`
      console.log(`${name}: ${shareText(first)} in the first 2.5 s, ${shareText(later)} later`)
      results.push(
        { name: `${name}: requests that fail within 2.5 s`, value: percent(first), unit: '%' },
        { name: `${name}: requests that fail later`, value: percent(later), unit: '%' },
      )
    }
  }
  return results
}

interface Share {
  asked: number
  failed: number
}

async function measure(cluster: BenchCluster, mode: string, isChecked: boolean) {
  const { world, api } = cluster
  const addresses = pods.map((pod) => addressOf(pod, 'IPv4'))
  api.put(service('ten', clusterIp, { annotations: isChecked ? checks : {} }))
  for (const port of ports) api.put(slice('ten', addresses, { port }))
  const proxy = startProxy(cluster, mode)
  while (!(await answers(world))) {
    if (!proxy.isAlive()) throw new Error(`${mode} ended: ${proxy.said()}`)
    await delay(100)
  }
  await delay(2000)
  const dark = ['-p', 'tcp', '--dport', '8081', '-j', 'DROP']
  await world.exec('pod-5', ['iptables', '-A', 'INPUT', ...dark])
  return await ask(world)
}

/** Connects at a steady pace, and counts apart what began before the checks could know. */
async function ask(world: World) {
  const shares = { first: { asked: 0, failed: 0 }, later: { asked: 0, failed: 0 } }
  const began = performance.now()
  const running: Promise<void>[] = []
  for (let at = 0; at < watchedMs; at = performance.now() - began) {
    const share: Share = at < noticedMs ? shares.first : shares.later
    running.push(
      answers(world).then((isAnswered) => {
        share.asked++
        if (!isAnswered) share.failed++
      }),
    )
    await delay(everyMs)
  }
  await Promise.all(running)
  return shares
}

async function answers(world: World): Promise<boolean> {
  const request = { protocol: 'TCP', host: clusterIp, port: 80, timeoutMs: patienceMs } as const
  const [result] = await world.agent('client-pod').flow(request)
  return result?.backend !== undefined
}

const percent = ({ asked, failed }: Share) => (failed / asked) * 100
const shareText = (share: Share) =>
  `${percent(share).toFixed(1)} % of ${share.asked} requests failed`
