import { mkdir, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { families, type Place } from '../../lib/lab/world/topology.js'
import { createWorld, type World } from '../../lib/lab/world/world.js'
import type { CommandOutput } from '../../lib/kernel/command.js'
import { commandThread } from '../support/command-thread.js'
import { runCommand } from '../support/run-command.js'
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
import { program } from '../support/program.js'
import { Daemon } from './daemon.js'
import type { ModeName } from '../../lib/config/config.js'
import { seeingOnly } from '../support/ebpf-node.js'
import { Traffic, type Pace } from './traffic.js'
import { until } from '../support/until.js'

export interface StageOptions {
  readonly mode: ModeName
  /** Services besides those with traffic. */
  readonly services: number
  readonly flags: readonly string[]
  /** A command that starts the command after it. */
  readonly by: readonly string[]
  /** Only the daemon uses connection tracking, so the kernel stops it when our rules are gone. */
  readonly isBare: boolean
  /** Programs to run on the node before the daemon. */
  readonly before: readonly (readonly string[])[]
  /** Random numbers from 0 up to 1. */
  readonly random: () => number
  /** What is unusual about the clients. */
  readonly pace: Partial<Pace>
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

/** A command costs less than a start of the program, and chaos compares after each fault. */
const commands = commandThread()
/** The modes in which `diff` reads nothing below /proc/net, which needs a process on the node. */
const readsInThread: readonly ModeName[] = ['nftables', 'ebpf', 'iptables']

/** A node with the daemon, its API server, and clients that connect all the time. */
export class Stage {
  readonly mode: ModeName
  readonly folder: string
  readonly world: World
  readonly api: Api
  readonly daemon: Daemon
  readonly random: () => number
  /** The time from the start of the process until its Services were served. */
  firstSyncMs = 0
  readonly #pace: Partial<Pace>
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
    this.#pace = options.pace
    this.#traffic = new Traffic(world, options.pace)
  }

  static async open(given: Partial<StageOptions> & { mode: ModeName }): Promise<Stage> {
    const defaults = {
      services: 50,
      flags: [],
      by: [],
      isBare: false,
      before: [],
      random: Math.random,
      pace: {},
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

  /** The flags that describe this node to commands that do not ask the daemon. */
  get sourceFlags(): readonly string[] {
    return sourceFlagsOf(this.folder)
  }

  get traffic(): Traffic {
    return this.#traffic
  }

  /** Adds rules as a CNI plug-in does. They keep the kernel tracking connections. */
  async addPluginRules(): Promise<void> {
    // A kernel with IPVS may have no nftables.
    if (this.mode !== 'ipvs') await this.node('nft', pluginRules)
    else for (const argv of iptablesPluginRules) await this.node(...argv)
  }

  /** Does something without clients, because it leaves the node without rules. */
  async inSilence(act: () => Promise<void>): Promise<void> {
    await this.traffic.stop()
    await act()
    this.#traffic = new Traffic(this.world, this.#pace)
  }

  /** Runs a program on the node; throws when it fails. */
  async node(...argv: readonly string[]): Promise<string> {
    const { code, stdout, stderr } = await this.world.exec('node', argv)
    if (code !== 0) throw new Error(`${argv.join(' ')}: ${stderr}`)
    return stdout
  }

  /** Runs `kube-proxy diff` beside the daemon. */
  diff(...args: readonly string[]): Promise<CommandOutput> {
    return readsInThread.includes(this.mode)
      ? commands.inside(this.world.namespaces.node)('diff', ...args)
      : this.world.exec('node', [process.execPath, program, 'diff', ...args])
  }

  /**
   * Runs `kube-proxy cleanup` where it cannot see the pinned programs of others on this machine.
   */
  cleanup(): Promise<CommandOutput> {
    const command = [process.execPath, program, 'cleanup']
    return this.world.exec('node', [...seeingOnly(bpffsOf(this.folder)), ...command])
  }

  /**
   * Waits until every client has an answer to a question after `since`, and until a change of
   * endpoints and one of a Service have arrived. The changes come by two watches, and each of them
   * may still wait for its next attempt.
   */
  async recovered(since: number): Promise<void> {
    this.#probePod = this.#probePod === 'pod-1' ? 'pod-3' : 'pod-1'
    this.#probePort = this.#probePort === probe.ports[0] ? probe.ports[1] : probe.ports[0]
    await this.api.put(...slicesOf(probe.name, [this.#probePod]), probeService(this.#probePort))
    const waiting = () => this.traffic.waiting(since).join(', ')
    await until(
      () => `answers to: ${waiting()}`,
      () => this.#isServing() && waiting() === '',
    )
    await until(
      () => 'a change of endpoints and of a Service',
      () => this.#isServing() && this.#isChanged(),
    )
  }

  /** Makes a change that nobody waits for. It is not the probe's, for which somebody may wait. */
  async change(): Promise<void> {
    this.#addedPod = this.#addedPod === 'pod-1' ? 'pod-3' : 'pod-1'
    await this.api.put(...filler(added, [this.#addedPod]))
  }

  /** The differences that `kube-proxy diff` finds while no sync runs, or an empty text. */
  async differences(): Promise<string> {
    let told = ''
    for (let tries = 0; tries < 20; tries++) {
      const { code, stdout, stderr } = await this.diff()
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

  /** Throws if no daemon runs, because then it is no use to wait. */
  #isServing(): boolean {
    if (this.daemon.latest.isRunning()) return true
    throw new Error('the daemon has ended')
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

/** The flags of ebpf mode: the cgroup of the clients, and a bpffs that nobody else sees. */
const socketFlags = ({ cgroup }: World, folder: string): readonly string[] =>
  cgroup === undefined ? [] : ['--ebpf-cgroup', cgroup, '--ebpf-bpffs', bpffsOf(folder)]

function flagsOf(mode: ModeName, folder: string): readonly string[] {
  return [
    ...['--proxy-mode', mode, '--proxy-mode-fallback=none', '--logging-format=json'],
    ...[...sourceFlagsOf(folder), '--hostname-override', 'node-1'],
    // Each stage has a folder, so that no daemon takes over from that of another stage.
    ...['--takeover-folder', join(folder, 'takeover')],
  ]
}

function sourceFlagsOf(folder: string): readonly string[] {
  const kubeconfig = join(folder, 'kubeconfig')
  return ['--kubeconfig', kubeconfig, '--cluster-cidr', '10.244.0.0/16,fd00:10:244::/48']
}
