import { mkdir, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { families, type Place } from '../../lib/lab/world/topology.js'
import { createWorld, type World } from '../../lib/lab/world/world.js'
import { runCommand, type CommandResult } from '../../lib/kernel/command.js'
import { Api } from './api.js'
import {
  added,
  filler,
  firstObjects,
  probe,
  probeService,
  serviceAddress,
  slicesOf,
} from './cluster.js'
import { Daemon, mainProgram } from './daemon.js'
import type { ModeName } from '../../lib/config/config.js'
import { seeingOnly } from '../support/ebpf-node.js'
import { Traffic } from './traffic.js'

export interface StageOptions {
  readonly mode: ModeName
  /** Services besides those with traffic. */
  readonly services: number
  readonly flags: readonly string[]
  /** A command that starts the daemon. */
  readonly by: readonly string[]
  /** Nothing but the daemon uses connection tracking, so the kernel stops it without our rules. */
  readonly isBare: boolean
  /** Programs to run on the node before the daemon. */
  readonly before: readonly (readonly string[])[]
  /** Random, from 0 up to 1. */
  readonly random: () => number
}

/** A wait ends with what it waits for; a busy machine has so long. */
export const patienceMs = 300_000

export async function until(
  what: () => string,
  condition: () => boolean | Promise<boolean>,
): Promise<void> {
  const end = performance.now() + patienceMs
  while (!(await condition())) {
    if (performance.now() > end) throw new Error(`waited ${patienceMs / 1000} s for ${what()}`)
    await delay(50)
  }
}

const pluginRules =
  'table inet plugin { chain forward { type filter hook forward priority 0; ct state established accept; }; }'
const iptablesPluginRules = ['iptables', 'ip6tables'].map((program) => [
  ...[
    program,
    '-w',
    '-A',
    'FORWARD',
    '-m',
    'conntrack',
    '--ctstate',
    'ESTABLISHED',
    '-j',
    'ACCEPT',
  ],
])

let opened = 0

/** A node with the daemon, its API server, and clients that never rest. */
export class Stage {
  readonly mode: ModeName
  readonly folder: string
  readonly world: World
  readonly api: Api
  readonly daemon: Daemon
  readonly random: () => number
  /** From the start of the process until its Services were served. */
  firstSyncMs = 0
  #traffic: Traffic
  #probePod: Place = 'pod-1'
  #probePort: number = probe.ports[0]
  #addedPod: Place = 'pod-1'

  private constructor(folder: string, world: World, options: StageOptions) {
    this.mode = options.mode
    this.folder = folder
    this.world = world
    this.random = options.random
    this.api = new Api(world)
    this.daemon = new Daemon(
      world,
      [...flagsOf(options.mode, folder), ...socketFlags(world, folder), ...options.flags],
      options.by,
    )
    this.#traffic = new Traffic(world)
  }

  static async open(given: Partial<StageOptions> & { mode: ModeName }): Promise<Stage> {
    const defaults = {
      services: 50,
      flags: [],
      by: [],
      isBare: false,
      before: [],
      random: Math.random,
    }
    const options: StageOptions = { ...defaults, ...given }
    const folder = await mkdtemp(join(tmpdir(), 'kube-proxy-chaos-'))
    const withCgroup = options.mode === 'ebpf'
    const world = await createWorld({ name: `chaos-${++opened}`, withCgroup })
    const stage = new Stage(folder, world, options)
    try {
      if (withCgroup) await stage.#mountBpffs()
      if (!options.isBare) await stage.addPluginRules()
      for (const argv of options.before) await stage.node(...argv)
      const fillers = Array.from({ length: options.services }, (_, index) =>
        filler(index, ['pod-1']),
      )
      await stage.api.writeKubeconfig(join(folder, 'kubeconfig'))
      await stage.api.start()
      await stage.api.put(...firstObjects(), ...fillers.flat())
      const startedAt = performance.now()
      stage.daemon.start()
      await stage.recovered(startedAt)
      stage.firstSyncMs = performance.now() - startedAt
      return stage
    } catch (error) {
      await stage.close()
      throw new Error(`${String(error)}\n${stage.daemon.output()}`, { cause: error })
    }
  }

  /** What tells commands of this node without the daemon. */
  get sourceFlags(): readonly string[] {
    return sourceFlagsOf(this.folder)
  }

  get traffic(): Traffic {
    return this.#traffic
  }

  /** As a CNI plug-in does: the kernel tracks connections as long as any rule wants that. */
  async addPluginRules(): Promise<void> {
    // Kernels that are there for IPVS may have no nftables.
    if (this.mode !== 'ipvs') await this.node('nft', pluginRules)
    else for (const argv of iptablesPluginRules) await this.node(...argv)
  }

  /** Without clients, for what leaves the node without rules on purpose. */
  async inSilence(act: () => Promise<void>): Promise<void> {
    await this.traffic.stop()
    await act()
    this.#traffic = new Traffic(this.world)
  }

  /** Runs a program on the node; throws when it fails. */
  async node(...argv: readonly string[]): Promise<string> {
    const { code, stdout, stderr } = await this.world.exec('node', argv)
    if (code !== 0) throw new Error(`${argv.join(' ')}: ${stderr}`)
    return stdout
  }

  /** A command of the program, beside the daemon. */
  kubeProxy(...args: readonly string[]): Promise<CommandResult> {
    return this.world.exec('node', [process.execPath, mainProgram, ...args])
  }

  /** Others have pins on this machine, too, which it must not see. */
  cleanup(): Promise<CommandResult> {
    const command = [process.execPath, mainProgram, 'cleanup']
    return this.world.exec('node', [...seeingOnly(bpffsOf(this.folder)), ...command])
  }

  /**
   * Every client has an answer to what it asked after `since`, and a change of endpoints and of a
   * Service arrive. They come by two watches, each of which may still wait for its next attempt.
   */
  async recovered(since: number): Promise<void> {
    this.#probePod = this.#probePod === 'pod-1' ? 'pod-3' : 'pod-1'
    this.#probePort = this.#probePort === probe.ports[0] ? probe.ports[1] : probe.ports[0]
    await this.api.put(...slicesOf(probe.name, [this.#probePod]), probeService(this.#probePort))
    const waiting = () => this.traffic.waiting(since).join(', ')
    await until(
      () => `answers to: ${waiting()}`,
      () => waiting() === '',
    )
    await until(
      () => 'a change of endpoints and of a Service',
      () => this.#isChanged(),
    )
  }

  /** A change that nobody waits for: somebody may be waiting for one of the probe. */
  async change(): Promise<void> {
    this.#addedPod = this.#addedPod === 'pod-1' ? 'pod-3' : 'pod-1'
    await this.api.put(...filler(added, [this.#addedPod]))
  }

  /** What `kube-proxy diff` tells, once no sync is under way: nothing, or the differences. */
  async differences(): Promise<string> {
    let told = ''
    for (let tries = 0; tries < 5; tries++) {
      const { code, stdout, stderr } = await this.kubeProxy('diff')
      if (code === 0) return ''
      told = `${stdout}${stderr}`
      await delay(1_000)
    }
    return told
  }

  async close(): Promise<void> {
    await this.traffic.stop()
    await this.world.close()
    await runCommand('umount', [bpffsOf(this.folder)])
    await rm(this.folder, { recursive: true, force: true })
  }

  async #mountBpffs(): Promise<void> {
    const bpffs = bpffsOf(this.folder)
    await mkdir(bpffs)
    const { code, stderr } = await runCommand('mount', ['-t', 'bpf', 'bpf', bpffs])
    if (code !== 0) throw new Error(`mount a bpffs: ${stderr}`)
  }

  async #isChanged(): Promise<boolean> {
    const addresses = serviceAddress(probe.number)
    const answers = families.map(async (family) => {
      const request = { protocol: 'TCP', host: addresses[family], port: this.#probePort } as const
      const [result] = await this.world.agent('client-pod').flow({ ...request, timeoutMs: 1_000 })
      return result?.backend === this.#probePod
    })
    return (await Promise.all(answers)).every(Boolean)
  }
}

const bpffsOf = (folder: string) => join(folder, 'bpffs')

/** In ebpf mode: clients have a cgroup of their own, and what is pinned is seen by nobody else. */
const socketFlags = ({ cgroup }: World, folder: string): readonly string[] =>
  cgroup === undefined ? [] : ['--ebpf-cgroup', cgroup, '--ebpf-bpffs', bpffsOf(folder)]

function flagsOf(mode: ModeName, folder: string): readonly string[] {
  return [
    ...['--proxy-mode', mode, '--proxy-mode-fallback=none', '--logging-format=json'],
    ...[...sourceFlagsOf(folder), '--hostname-override', 'node-1'],
    // Two stages must not meet.
    ...['--takeover-folder', join(folder, 'takeover')],
  ]
}

function sourceFlagsOf(folder: string): readonly string[] {
  const kubeconfig = join(folder, 'kubeconfig')
  return ['--kubeconfig', kubeconfig, '--cluster-cidr', '10.244.0.0/16,fd00:10:244::/48']
}
