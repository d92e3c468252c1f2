import type { ChildProcessWithoutNullStreams } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { Variant } from './variants.js'
import type { World } from '../../lib/lab/world/world.js'
import type { CaseSettings } from './case.js'
import { idOf } from './objects.js'
import type { Manifest } from './objects.js'
import type { Changes, Subject } from './subject.js'

const command = fileURLToPath(new URL('../../lib/cli/main.js', import.meta.url))
const patience = Number(process.env.CONFORMANCE_PATIENCE ?? 1)
const patienceMs = 60_000 * patience
/** If no other sync follows in this time, the daemon has seen everything. */
const quietMs = 200 * patience

/** The whole command, as an operator runs it, fed by a folder of manifests. */
export class DaemonSubject implements Subject {
  readonly name: string
  readonly #subject: Pick<Variant, 'mode' | 'dataPath' | 'sourceAddress'>
  readonly #confinement: readonly string[]
  readonly #objects = new Map<string, Manifest>()
  #folder: string | undefined
  #child: ChildProcessWithoutNullStreams | undefined
  #log: string[] = []
  /** How many syncs of the second family have ended, and when the last did. */
  #syncs = { count: 0, lastAt: 0 }

  /** `confinement` is a program that runs the command with fewer rights, with its arguments. */
  constructor(
    subject: Pick<Variant, 'mode' | 'dataPath' | 'sourceAddress'>,
    confinement: readonly string[] = [],
  ) {
    this.name = `kube-proxy --proxy-mode=${subject.mode}`
    this.#subject = subject
    this.#confinement = confinement
  }

  async start(world: World, settings: CaseSettings, objects: readonly Manifest[]): Promise<void> {
    this.#folder = mkdtempSync(join(tmpdir(), 'conformance-'))
    this.#objects.clear()
    for (const manifest of objects) this.#objects.set(idOf(manifest), manifest)
    this.#write()
    this.#log = []
    this.#syncs = { count: 0, lastAt: 0 }
    const flags = ['--manifests', this.#folder, ...flagsOf(this.#subject, settings)]
    if (world.cgroup !== undefined) flags.push(`--ebpf-cgroup=${world.cgroup}`, '--ebpf-bpffs=')
    const child = world.spawn('node', [...this.#confinement, process.execPath, command, ...flags])
    this.#child = child
    for (const stream of [child.stdout, child.stderr]) {
      createInterface({ input: stream }).on('line', (line) => this.#hear(line))
    }
    await this.#synced(0)
  }

  async apply({ upserts, removals }: Changes): Promise<void> {
    if (upserts.length + removals.length === 0) return
    for (const manifest of removals) this.#objects.delete(idOf(manifest))
    for (const manifest of upserts) this.#objects.set(idOf(manifest), manifest)
    const { count } = this.#syncs
    this.#write()
    await this.#synced(count)
  }

  async stop(): Promise<void> {
    const child = this.#child
    this.#child = undefined
    if (child && child.exitCode === null && child.signalCode === null) {
      const exited = once(child, 'exit')
      child.kill('SIGTERM')
      await exited
    }
    if (this.#folder !== undefined) rmSync(this.#folder, { recursive: true })
    this.#folder = undefined
  }

  /** By a rename, as editors and Kubernetes do it, so that no half file is read. */
  #write(): void {
    if (this.#folder === undefined) return
    const items = [...this.#objects.values()]
    const list = { apiVersion: 'v1', kind: 'List', items }
    writeFileSync(join(this.#folder, '.objects.next'), JSON.stringify(list))
    renameSync(join(this.#folder, '.objects.next'), join(this.#folder, 'objects.json'))
  }

  #hear(line: string): void {
    this.#log = [...this.#log.slice(-40), line]
    if (line.includes('SyncProxyRules complete') && line.includes('IPv6')) {
      this.#syncs = { count: this.#syncs.count + 1, lastAt: performance.now() }
    }
  }

  async #synced(before: number): Promise<void> {
    const deadline = performance.now() + patienceMs
    for (;;) {
      const { count, lastAt } = this.#syncs
      if (count > before && performance.now() - lastAt > quietMs) return
      if (performance.now() > deadline || this.#child?.exitCode !== null) {
        throw new Error(`${this.name} did not sync; it said:\n${this.#log.join('\n')}`)
      }
      await sleep(20)
    }
  }
}

function flagsOf(
  { mode, dataPath, sourceAddress }: Pick<Variant, 'mode' | 'dataPath' | 'sourceAddress'>,
  settings: CaseSettings,
): readonly string[] {
  const { detectLocal } = settings
  return [
    `--proxy-mode=${mode}`,
    '--proxy-mode-fallback=none',
    '--hostname-override=node',
    '--logging-format=json',
    '-v=4',
    // In ipvs mode this is how often it syncs without a change, which would look as if one were in force.
    ...(mode === 'ipvs'
      ? ['--ipvs-min-sync-period=10ms', '--ipvs-sync-period=60s']
      : ['--iptables-min-sync-period=10ms', '--iptables-sync-period=1s']),
    '--drain-timeout=500ms',
    ...(dataPath ? [`--userspace-datapath=${dataPath}`] : []),
    ...(sourceAddress ? [`--userspace-source-address=${sourceAddress}`] : []),
    `--feature-gates=AllowServiceExternalIPs=${settings.allowsExternalIps}`,
    `--masquerade-all=${settings.masqueradeAll}`,
    `--iptables-localhost-nodeports=${settings.localhostNodePorts}`,
    // Unlike an empty list this means every address in every mode.
    `--nodeport-addresses=${settings.nodePortAddresses.join() || '0.0.0.0/0,::/0'}`,
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
