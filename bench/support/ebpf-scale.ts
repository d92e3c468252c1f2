/**
 * Measures a mode with 5,000 Services of ten endpoints: its memory, and the time that the socket
 * half of ebpf mode takes to load and to change. Usage: ebpf-scale.js MODE CGROUP
 */
import { readdirSync, readFileSync } from 'node:fs'
import { configWith } from '../../lib/config/load.js'
import { ebpfSettings } from '../../lib/modes/ebpf/settings.js'
import { openSockets } from '../../lib/modes/ebpf/sockets.js'
import { socketPlanner } from '../../lib/modes/ebpf/plan.js'
import { modeLoaders } from '../../lib/modes/registry.js'
import { contextOf } from '../../test/support/mode-context.js'
import { RawCluster, rawSlice } from './raw-cluster.js'
import { summarize } from './summary.js'

export interface ScaleResult {
  /** Memory of the process after garbage collection, without the eBPF arrays that it maps. */
  readonly residentMib: number
  /** Memory of the eBPF maps in the kernel. */
  readonly mapsMib: number
  /** The time to load the socket half alone. */
  readonly loadMs: number
  /** The processor time of the load. On a busy machine it is shorter than `loadMs`. */
  readonly loadCpuMs: number
  readonly p50Ms: number
  readonly p99Ms: number
}

const services = 5_000
const changes = 600
const warmUp = 100

const { context } = contextOf()
const [, , mode = '', cgroup = ''] = process.argv
const cluster = new RawCluster()
await cluster.read(services)
const config = configWith({ 'ebpf.cgroup': cgroup, 'ebpf.bpffs': '' })
const result = mode === 'sockets' ? await measureSockets() : await measureMode()
process.stdout.write(`${JSON.stringify(result)}\n`)
process.exit(0)

/** From the state to the maps, as one sync does it. */
async function measureSockets(): Promise<ScaleResult> {
  const settings = ebpfSettings(config)
  const sockets = openSockets(settings, context)
  const planner = socketPlanner(settings)
  const first = cluster.take()
  const [began, before] = [performance.now(), process.cpuUsage()]
  await sockets.apply(planner(first))
  const loadMs = performance.now() - began
  const { user, system } = process.cpuUsage(before)
  const loadCpuMs = (user + system) / 1000
  const times: number[] = []
  for (let change = 0; change < warmUp + changes; change++) {
    cluster.readSlice(rawSlice((change * 37) % services, change + 1))
    const changeBegan = performance.now()
    await sockets.apply(planner(cluster.take()))
    if (change >= warmUp) times.push(performance.now() - changeBegan)
    if (change % 20 === 0) await new Promise((resolve) => setTimeout(resolve, 20))
  }
  const { p50: p50Ms, p99: p99Ms } = summarize(times)
  return { ...memory(), loadMs, loadCpuMs, p50Ms, p99Ms }
}

async function measureMode(): Promise<ScaleResult> {
  const definition = await modeLoaders[mode === 'ebpf' ? 'ebpf' : 'nftables']()
  const running = await definition.create(config, ['IPv4'], context)
  await running.apply(running.plan(cluster.take()))
  for (let change = 0; change < changes; change++) {
    cluster.readSlice(rawSlice((change * 37) % services, change + 1))
    await running.apply(running.plan(cluster.take()))
  }
  return { ...memory(), loadMs: NaN, loadCpuMs: NaN, p50Ms: NaN, p99Ms: NaN }
}

function memory(): Pick<ScaleResult, 'residentMib' | 'mapsMib'> {
  for (let times = 0; times < 4; times++) globalThis.gc?.()
  let mapBytes = 0
  for (const fd of readdirSync('/proc/self/fdinfo')) {
    const info = readInfo(`/proc/self/fdinfo/${fd}`)
    if (info.includes('map_type')) mapBytes += Number(/^memlock:\s+(\d+)/m.exec(info)?.[1] ?? 0)
  }
  const residentBytes = process.memoryUsage.rss() - mappedBytes()
  return { residentMib: residentBytes / 2 ** 20, mapsMib: mapBytes / 2 ** 20 }
}

/** Pages of arrays that are mapped here: the kernel counts them as resident, and as the map's. */
function mappedBytes(): number {
  const smaps = readInfo('/proc/self/smaps')
  const mappings = smaps.split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m)
  const arrays = mappings.filter((text) => /^.*anon_inode:bpf-map/.test(text))
  const sizes = arrays.map((text) => Number(/^Rss:\s+(\d+) kB/m.exec(text)?.[1] ?? 0))
  return 1024 * sizes.reduce((sum, size) => sum + size, 0)
}

/** Empty if the file is gone, as the descriptor of the folder itself. */
function readInfo(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return ''
  }
}
