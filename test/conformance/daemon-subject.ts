import { once } from 'node:events'
import { mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Variant } from './variants.js'
import type { IpFamily } from '../../lib/state/ip.js'
import type { World } from '../../lib/lab/world/world.js'
import type { CaseSettings } from './case.js'
import { patience } from './flows.js'
import { idOf } from './objects.js'
import type { Manifest } from './objects.js'
import type { Changes, Subject } from './subject.js'
import { program } from '../support/program.js'

const patienceMs = 300_000 * patience
/** When no other sync follows in this time, the daemon has seen everything. */
const quietMs = 200 * patience

type Asked = Pick<Variant, 'mode' | 'dataPath' | 'portals' | 'sourceAddress'>

export interface RunningCommand {
  readonly hasEnded: boolean
  end(): Promise<void>
}

/**
 * The system that the command runs on: this one, or another with other names for the same files.
 */
export interface System {
  readonly name: string
  /** The family that each sync handles last. */
  readonly lastFamily: IpFamily
  /**
   * Makes a folder for manifests. Its two names are that of this process and that of the command.
   */
  addFolder(): { readonly here: string; readonly there: string }
  /** Starts the command in the node of a world; `hear` gets each line that it writes. */
  start(
    world: World,
    flags: readonly string[],
    hear: (line: string) => void,
  ): Promise<RunningCommand>
  /** Does what the system cannot do by itself, before the command gets these objects, and after. */
  prepare?(world: World, objects: readonly Manifest[]): Promise<void>
  tidy?(world: World, objects: readonly Manifest[]): Promise<void>
}

/** `confinement` is a program that runs the command with fewer rights, with its arguments. */
export function onLinux(confinement: readonly string[] = []): System {
  return {
    name: 'Linux',
    lastFamily: 'IPv6',
    addFolder: () => {
      const here = mkdtempSync(join(tmpdir(), 'conformance-'))
      return { here, there: here }
    },
    start: (world, flags, hear) => {
      const { cgroup } = world
      const sockets = cgroup === undefined ? [] : [`--ebpf-cgroup=${cgroup}`, '--ebpf-bpffs=']
      const argv = [...confinement, process.execPath, program, ...flags, ...sockets]
      const child = world.spawn('node', argv)
      for (const stream of [child.stdout, child.stderr]) {
        createInterface({ input: stream }).on('line', hear)
      }
      return Promise.resolve({
        get hasEnded() {
          return child.exitCode !== null || child.signalCode !== null
        },
        async end() {
          if (this.hasEnded) return
          const exited = once(child, 'exit')
          child.kill('SIGTERM')
          await exited
        },
      })
    },
  }
}

/** The whole command, as an operator runs it, fed by a folder of manifests. */
export class DaemonSubject implements Subject {
  readonly name: string
  readonly #asked: Asked
  readonly #system: System
  readonly #objects = new Map<string, Manifest>()
  #folder: ReturnType<System['addFolder']> | undefined
  #running: RunningCommand | undefined
  #world: World | undefined
  #log: string[] = []
  /** How many syncs of the last family have ended, and when the last one ended. */
  #syncs = { count: 0, lastAt: 0 }
  /** Whether it has read what was written last. Until then a sync has another cause. */
  #hasHeard = false

  constructor(asked: Asked, system: System = onLinux()) {
    this.name = `kube-proxy --proxy-mode=${asked.mode} on ${system.name}`
    this.#asked = asked
    this.#system = system
  }

  async start(world: World, settings: CaseSettings, objects: readonly Manifest[]): Promise<void> {
    this.#world = world
    this.#folder = this.#system.addFolder()
    this.#objects.clear()
    for (const manifest of objects) this.#objects.set(idOf(manifest), manifest)
    await this.#write()
    // It logs nothing about an empty folder.
    this.#hasHeard = objects.length === 0
    this.#log = []
    this.#syncs = { count: 0, lastAt: 0 }
    const flags = ['--manifests', this.#folder.there, ...flagsOf(this.#asked, settings)]
    this.#running = await this.#system.start(world, flags, (line) => this.#hear(line))
    await this.#synced(0)
  }

  async apply({ upserts, removals }: Changes): Promise<void> {
    if (upserts.length + removals.length === 0) return
    for (const manifest of removals) this.#objects.delete(idOf(manifest))
    for (const manifest of upserts) this.#objects.set(idOf(manifest), manifest)
    const { count } = this.#syncs
    await this.#write()
    await this.#synced(count)
    if (this.#world) await this.#system.tidy?.(this.#world, [...this.#objects.values()])
  }

  async stop(): Promise<void> {
    const running = this.#running
    this.#running = undefined
    await running?.end()
    if (this.#folder) rmSync(this.#folder.here, { recursive: true })
    this.#folder = undefined
  }

  /** Writes by a rename, as editors and Kubernetes do, so that nobody reads half a file. */
  async #write(): Promise<void> {
    if (!this.#folder || !this.#world) return
    const { here } = this.#folder
    const items = [...this.#objects.values()]
    await this.#system.prepare?.(this.#world, items)
    const list = { apiVersion: 'v1', kind: 'List', items }
    writeFileSync(join(here, '.objects.next'), JSON.stringify(list))
    this.#hasHeard = false
    renameSync(join(here, '.objects.next'), join(here, 'objects.json'))
  }

  #hear(line: string): void {
    this.#log = [...this.#log.slice(-40), line]
    if (/"object (received|removed)"/.test(line)) this.#hasHeard = true
    if (!this.#hasHeard) return
    if (line.includes('SyncProxyRules complete') && line.includes(this.#system.lastFamily)) {
      this.#syncs = { count: this.#syncs.count + 1, lastAt: performance.now() }
    }
  }

  async #synced(before: number): Promise<void> {
    const deadline = performance.now() + patienceMs
    for (;;) {
      const { count, lastAt } = this.#syncs
      if (count > before && performance.now() - lastAt > quietMs) return
      if (performance.now() > deadline || this.#running?.hasEnded !== false) {
        throw new Error(`${this.name} did not sync; it said:\n${this.#log.join('\n')}`)
      }
      await sleep(20)
    }
  }
}

function flagsOf(
  { mode, dataPath, portals, sourceAddress }: Asked,
  settings: CaseSettings,
): readonly string[] {
  const { detectLocal } = settings
  return [
    `--proxy-mode=${mode}`,
    '--proxy-mode-fallback=none',
    '--hostname-override=node',
    '--logging-format=json',
    '-v=4',
    // Ipvs mode also syncs after this period without a change, and a test takes such a sync for its
    // own.
    ...(mode === 'ipvs'
      ? ['--ipvs-min-sync-period=10ms', '--ipvs-sync-period=60s']
      : ['--iptables-min-sync-period=10ms', '--iptables-sync-period=1s']),
    '--drain-timeout=500ms',
    ...(dataPath ? [`--userspace-datapath=${dataPath}`] : []),
    ...(portals ? [`--userspace-portals=${portals}`] : []),
    ...(sourceAddress ? [`--userspace-source-address=${sourceAddress}`] : []),
    `--feature-gates=AllowServiceExternalIPs=${settings.allowsExternalIps}`,
    `--feature-gates=KubeProxyNFTablesLocalhostNodePorts=${settings.localhostNodePorts}`,
    `--masquerade-all=${settings.masqueradeAll}`,
    `--iptables-localhost-nodeports=${settings.localhostNodePorts}`,
    `--nodeport-addresses=${settings.nodePortAddresses.join()}`,
    `--detect-local-mode=${detectLocal.mode}`,
    ...(detectLocal.mode === 'ClusterCIDR' ? [`--cluster-cidr=${detectLocal.cidrs.join()}`] : []),
    ...(detectLocal.mode === 'BridgeInterface'
      ? [`--pod-bridge-interface=${detectLocal.name}`]
      : []),
    ...(detectLocal.mode === 'InterfaceNamePrefix'
      ? [`--pod-interface-name-prefix=${detectLocal.prefix}`]
      : []),
  ]
}
