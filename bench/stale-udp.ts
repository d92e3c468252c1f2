import { createInterface } from 'node:readline'
import { on } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { addressOf } from '../lib/lab/world/topology.js'
import { inCluster, service, slice, startProxy } from './support/bench-cluster.js'
import type { BenchCluster } from './support/bench-cluster.js'
import type { BenchResults } from './support/results.js'
import { summarize } from './support/summary.js'
import type { EndpointSeen } from './support/udp-clients.js'

const modes = (process.env['BENCH_MODES'] ?? 'ebpf,nftables').split(',')
const tries = Number(process.env['BENCH_TRIES'] ?? 100)
const clusterIp = '10.96.250.30'
const protocol = 'UDP'
const clients = ['connected', 'unconnected'] as const
const pods = ['pod-1', 'pod-2'] as const
/** The aim for each try. */
const soonMs = 100
const patienceMs = 30_000
/** Longer than the pause after a sync, so each change finds the proxy at rest. */
const restMs = 300

/** How soon clients of UDP reach the new endpoint, from the change in the API to its first answer. */
export async function run(): Promise<BenchResults> {
  const results: BenchResults[] = []
  for (const mode of modes) {
    const withCgroup = mode === 'ebpf'
    const taken = await inCluster(0, (cluster) => measure(cluster, mode), { withCgroup })
    results.push(clients.flatMap((client) => rowsOf(mode, client, taken[client])))
  }
  return results.flat()
}

type Taken = Readonly<Record<EndpointSeen['client'], number[]>>

function rowsOf(mode: string, client: string, taken: readonly number[]): BenchResults {
  const soon = taken.filter((ms) => ms <= soonMs).length
  const { p50 } = summarize([...taken])
  const longest = Math.max(...taken)
  const name = `${mode}, ${client} socket`
  console.log(
    `${name}: ${soon} of ${taken.length} within ${soonMs} ms; p50 ${p50.toFixed(1)}, longest ${longest.toFixed(1)} ms`,
  )
  return [
    {
      ...{ name: `${name}: tries of ${tries} within ${soonMs} ms`, value: soon, unit: '' },
      ...(mode === 'ebpf' ? { target: `>= ${tries}` } : {}),
    },
    { name: `${name}: new endpoint answers, p50`, value: p50, unit: 'ms' },
    { name: `${name}: new endpoint answers, longest`, value: longest, unit: 'ms' },
  ]
}

async function measure(cluster: BenchCluster, mode: string): Promise<Taken> {
  const { world, api } = cluster
  const moveTo = (pod: (typeof pods)[number]) =>
    api.put(slice('stale', [addressOf(pod, 'IPv4')], { protocol }))
  api.put(service('stale', clusterIp, { protocol }))
  moveTo(pods[0])
  const proxy = startProxy(cluster, mode)
  const script = fileURLToPath(new URL('./support/udp-clients.js', import.meta.url))
  const argv = [process.execPath, script, world.cgroup ?? '', clusterIp, '80']
  const lines = createInterface(world.spawn('client-pod', argv).stdout)
  const heard = on(lines, 'line', { signal: AbortSignal.timeout(patienceMs + tries * 1000) })
  const taken: Taken = { connected: [], unconnected: [] }
  for (let count = -1; count < tries; count++) {
    const pod = pods[Math.abs(count) % 2] ?? 'pod-1'
    const began = performance.timeOrigin + performance.now()
    moveTo(pod)
    const waiting = new Set<string>(clients)
    while (waiting.size > 0) {
      const next = (await heard.next()) as { readonly value: readonly [string] }
      const seen = JSON.parse(next.value[0]) as EndpointSeen
      if (seen.backend !== pod || !waiting.delete(seen.client)) continue
      if (count >= 0) taken[seen.client].push(seen.at - began)
    }
    if (!proxy.isAlive()) throw new Error(`${mode} ended: ${proxy.said()}`)
    // Work after the first rules, such as cleaning up, is no part of a change.
    await delay(count < 0 ? 2000 : restMs)
  }
  return taken
}
