import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'
import { configWith } from '../../lib/config/load.js'
import { attachedPrograms, mapsOfProgram } from '../../lib/kernel/bpf/attached.js'
import { detachLink, forEachCgroupLink } from '../../lib/kernel/bpf/link.js'
import type { BpfMap } from '../../lib/kernel/bpf/map.js'
import { openSystemCalls } from '../../lib/kernel/bpf/system-calls.js'
import { openCgroup } from '../../lib/kernel/cgroup.js'
import { addNodeCgroup, removeCgroup } from '../../lib/lab/world/cgroups.js'
import { ebpfMode } from '../../lib/modes/ebpf/index.js'
import { mapNames } from '../../lib/modes/ebpf/names.js'
import type { FamilyPlan, Mode, ModeContext, ModeDefinition } from '../../lib/modes/mode.js'
import { Metrics } from '../../lib/observe/metrics.js'
import { PersistentMap } from '../../lib/state/persistent-map.js'
import { startCgroupClient, type CgroupClient } from './cgroup-client.js'
import { contextOf } from './mode-context.js'
import type { States } from './states.js'

/** A packet path that does nothing, so that only the programs at sockets translate. */
export const noPackets: ModeDefinition = {
  summary: 'nothing',
  probe: () => Promise.resolve([]),
  syncPeriods: () => ({ minMs: 0, syncMs: 1000 }),
  planner: () => ({ ...nothing, parts: () => PersistentMap.empty<object>(), only: (plan) => plan }),
  create: () => Promise.resolve(nothing),
  differences: () => Promise.resolve([]),
  cleanup: () => Promise.resolve(),
}

const nothing: Mode = {
  plan: ({ family }): FamilyPlan => ({ family }),
  render: () => '',
  renderChanges: () => '',
  apply: () => Promise.resolve({ full: false, bytes: 0, objects: 0, failed: [] }),
  forget: () => undefined,
  reconfigure: () => false,
  run: () => Promise.resolve(),
  close: () => Promise.resolve(),
}

export interface Node {
  readonly cgroup: string
  readonly client: CgroupClient
  /** Starts the mode anew, as after a restart. */
  readonly start: (
    config?: Parameters<typeof configWith>[0],
    listeners?: Pick<ModeContext, 'translated'>,
  ) => Promise<Started>
}

export interface Started {
  readonly mode: Mode
  readonly resyncs: readonly string[]
  readonly apply: (cluster: States) => Promise<void>
  /** The page of /metrics. */
  readonly page: () => Promise<string>
}

export async function createNode(t: Test, name: string): Promise<Node> {
  const cgroup = addNodeCgroup(name)
  t.teardown(() => removeCgroup(cgroup))
  const client = startCgroupClient(cgroup)
  t.teardown(() => client.close())
  return {
    cgroup,
    client,
    start: async (config = {}, listeners = {}) => {
      const { context: silent, resyncs } = contextOf()
      const metrics = new Metrics({ mode: 'ebpf', process: false })
      const context = { ...silent, ...listeners, meter: metrics }
      const whole = configWith({ 'ebpf.cgroup': cgroup, 'ebpf.bpffs': '', ...config })
      const mode = await ebpfMode(noPackets).create(whole, ['IPv4', 'IPv6'], context)
      const apply = async (cluster: States) => {
        await mode.apply(mode.plan(cluster.take()))
      }
      metrics.beforePage(() => mode.countTraffic?.())
      return { mode, resyncs, apply, page: async () => (await metrics.page()).body }
    },
  }
}

/** A node where the mode looks all the time whether others change its programs and maps. */
export async function createGuardedNode(t: Test, name: string): Promise<Node & Started> {
  const node = await createNode(t, name)
  const started = await node.start({ 'nftables.syncPeriod': 20 })
  const stop = new AbortController()
  const running = started.mode.run(stop.signal)
  t.teardown(async () => {
    stop.abort()
    await running
    await started.mode.close()
  })
  return { ...node, ...started }
}

/** Mounts a bpffs that only this test uses. */
export function mountBpffs(t: Test): string {
  const folder = mkdtempSync(join(tmpdir(), 'bpffs-'))
  execFileSync('mount', ['-t', 'bpf', 'bpf', folder])
  t.teardown(() => {
    execFileSync('umount', [folder])
    rmSync(folder, { recursive: true })
  })
  return folder
}

/** Starts a program that sees the pins of one bpffs: a cleanup removes all that it sees. */
export function seeingOnly(bpffs: string): readonly string[] {
  const script = `
    for each in $(findmnt -rn -t bpf -o TARGET); do [ "$each" = "$0" ] || umount "$each"; done
    exec "$@"`
  return ['unshare', '--mount', 'sh', '-c', script, bpffs]
}

/** Detaches all programs of a cgroup, as `bpftool cgroup detach` does. */
export function detachAll(folder: string): void {
  const calls = openSystemCalls()
  const cgroup = openCgroup(folder)
  forEachCgroupLink(calls, cgroup.id, (link) => detachLink(calls, link))
  cgroup.close()
}

/** Uses a map of the attached programs, as `bpftool map` does. */
export function withMap<T>(
  cgroup: string,
  name: keyof typeof mapNames,
  use: (map: BpfMap) => T,
): T {
  const calls = openSystemCalls()
  const opened = openCgroup(cgroup)
  const [program] = attachedPrograms(calls, opened.fd, 'connect4')
  const maps = mapsOfProgram(calls, program?.id ?? 0)
  const map = maps.find(({ spec }) => spec.name === mapNames[name].slice(0, 15))
  if (!map) throw new Error(`no map ${name} among ${maps.map(({ spec }) => spec.name).join()}`)
  const result = use(map)
  for (const each of [...maps, opened]) each.close()
  return result
}
