import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { setTimeout as delay } from 'node:timers/promises'
import { join } from 'node:path'
import { tmpdir } from 'node:os'
import { addressOf, type Place } from '../world/topology.js'
import { backendPorts, createWorld, type World } from '../world/world.js'
import { runProxy, type RunningProxy } from './proxy-process.js'
import type { ModeName } from '../modes/mode.js'

export interface TourOptions {
  /** Modes to show, one after the other; each was probed and can run here. */
  readonly modes: readonly ModeName[]
  readonly print: (line: string) => void
}

const clusterIp = '10.96.0.10'
const port = 80
const backends: readonly Place[] = ['pod-1', 'pod-2']
const calls = 6

/**
 * Shows Services at work on this machine alone: a small cluster of network namespaces, the
 * daemon in it, and requests through a ClusterIP. Resolves to whether everything answered.
 */
export async function runTour(options: TourOptions, signal: AbortSignal): Promise<boolean> {
  const { print } = options
  print('Building a node with pods out of network namespaces ...')
  const folder = await mkdtemp(join(tmpdir(), 'kube-proxy-tour-'))
  const world = await createWorld({ name: 'tour' })
  try {
    let isFine = true
    for (const mode of options.modes) {
      if (signal.aborted) break
      isFine = (await showMode(mode, { world, folder, print })) && isFine
    }
    return isFine
  } finally {
    await world.close()
    await rm(folder, { recursive: true })
  }
}

interface Stage {
  readonly world: World
  readonly folder: string
  readonly print: (line: string) => void
}

async function showMode(mode: ModeName, stage: Stage): Promise<boolean> {
  const { world, folder, print } = stage
  print('')
  print(`-- mode ${mode}: kube-proxy --proxy-mode=${mode} --manifests=${folder}`)
  await writeService(folder, backends)
  const proxy = runProxy(world, ['--proxy-mode', mode, '--manifests', folder])
  try {
    if (!(await answers(world, proxy))) {
      print(`   the Service did not answer; the daemon said:\n${proxy.output()}`)
      return false
    }
    print(`   ${calls} requests from a pod to the ClusterIP ${clusterIp}:${port}:`)
    const both = await call(stage, backends.length)
    await writeService(folder, ['pod-2'])
    await gone(world, 'pod-1')
    print('   pod-1 is no longer ready; the same requests again:')
    const one = await call(stage, 1)
    return both.size === backends.length && one.size === 1 && one.has('pod-2')
  } finally {
    await proxy.stop()
  }
}

/** Who answered how often, drawn as rows of names. */
async function call(
  { world, print }: Stage,
  expected: number,
): Promise<ReadonlyMap<string, number>> {
  const counts = new Map<string, number>()
  // Selection is random in the kernel modes: ask until everybody had a fair chance.
  for (let round = 0; round < 4; round++) {
    const results = await ask(world, calls)
    const row = results.map((backend) => backend ?? '(no answer)')
    print(`   ${row.join('  ')}`)
    for (const backend of results) {
      if (backend !== undefined) counts.set(backend, (counts.get(backend) ?? 0) + 1)
    }
    if (counts.size === expected) break
  }
  return counts
}

async function ask(world: World, count: number): Promise<readonly (string | undefined)[]> {
  const results = await world
    .agent('client-pod')
    .flow({ protocol: 'TCP', host: clusterIp, port, count })
  return results.map(({ backend }) => backend)
}

const patienceMs = 20_000
const pauseMs = 50

async function answers(world: World, proxy: RunningProxy): Promise<boolean> {
  for (let waited = 0; waited < patienceMs && proxy.isRunning(); waited += pauseMs) {
    const [backend] = await ask(world, 1)
    if (backend !== undefined) return true
    await delay(pauseMs)
  }
  return false
}

/** Waits until nobody reaches the place any more. */
async function gone(world: World, place: Place): Promise<void> {
  for (let waited = 0; waited < patienceMs; waited += pauseMs) {
    if (!(await ask(world, calls * 2)).includes(place)) return
    await delay(pauseMs)
  }
}

async function writeService(folder: string, ready: readonly Place[]): Promise<void> {
  const service = {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name: 'web', namespace: 'default' },
    spec: { clusterIP: clusterIp, clusterIPs: [clusterIp], ports: [{ name: 'http', port }] },
  }
  const slice = {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      name: 'web-ipv4',
      namespace: 'default',
      labels: { 'kubernetes.io/service-name': 'web' },
    },
    addressType: 'IPv4',
    ports: [{ name: 'http', protocol: 'TCP', port: backendPorts[0] }],
    endpoints: ready.map((place) => ({
      addresses: [addressOf(place, 'IPv4')],
      conditions: { ready: true },
      nodeName: 'node-1',
    })),
  }
  const list = { apiVersion: 'v1', kind: 'List', items: [service, slice] }
  await writeFile(join(folder, 'web.json'), JSON.stringify(list, null, 2))
}
