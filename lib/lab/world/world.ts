import { spawn, type ChildProcessWithoutNullStreams } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { runCommand, type RunOptions, type CommandOutput } from '../../kernel/command.js'
import { insideNamespace, mayEnterNamespaces } from '../../kernel/network-namespaces.js'
import { startProgramsQuickly } from '../../kernel/posix-spawn.js'
import { startAgents, type Agent } from './agent.js'
import { addNodeCgroup, removeCgroup, sweepCgroups } from './cgroups.js'
import { addressRounds, linkCommands, type NamespaceNames } from './links.js'
import { addNamespaces, ipBatch, namespaceNames, startReaper, sweepWorlds } from './namespaces.js'
import { hasSctp } from './native-socket.js'
import { backendPorts, addresses, isOnNode, places, type Place } from './topology.js'

export interface WorldOptions {
  /** Distinguishes the worlds of one process; lower-case letters and digits. */
  readonly name: string
  /** Ports on which every place serves; the defaults are `backendPorts`. */
  readonly ports?: readonly number[]
  /** The sockets of the node and of its pods get a cgroup of their own. */
  readonly withCgroup?: boolean
}

/** Programs that see the network and nothing of /sys, of which `ip netns exec` shows another one. */
const ofNetwork = /^(ip|ipset|ipvsadm|nft|ss|conntrack|ip6?tables(-legacy|-nft)?(-save|-restore)?)$/

/** For every place: no address checks that take a second, no limits that hide an answer. */
const everywhere = {
  '/proc/sys/net/ipv6/conf/all/accept_redirects': '0',
  '/proc/sys/net/ipv6/conf/default/accept_redirects': '0',
  '/proc/sys/net/ipv6/conf/all/accept_dad': '0',
  '/proc/sys/net/ipv6/conf/default/accept_dad': '0',
  '/proc/sys/net/ipv4/icmp_ratelimit': '0',
  '/proc/sys/net/ipv4/icmp_ratemask': '0',
  '/proc/sys/net/ipv6/icmp/ratelimit': '0',
  '/proc/sys/net/ipv6/icmp/ratemask': '\n',
}

/** For the two nodes: they forward, and send no ICMP redirects. */
const forwarding = {
  '/proc/sys/net/ipv4/ip_forward': '1',
  '/proc/sys/net/ipv6/conf/all/forwarding': '1',
  '/proc/sys/net/ipv6/conf/default/forwarding': '1',
  '/proc/sys/net/ipv4/conf/all/send_redirects': '0',
  '/proc/sys/net/ipv4/conf/default/send_redirects': '0',
}

/** Only where the kernel has it: frames between pods skip the node's IP rules. */
const bridging = {
  '/proc/sys/net/bridge/bridge-nf-call-iptables': '0',
  '/proc/sys/net/bridge/bridge-nf-call-ip6tables': '0',
}

/**
 * Builds a world. Needs root. It changes nothing outside its own namespaces. Those are removed when
 * it closes, when this process exits and when it is killed.
 */
export async function createWorld(options: WorldOptions): Promise<World> {
  await startProgramsQuickly()
  await sweepWorlds()
  if (options.withCgroup === true) sweepCgroups()
  const names = namespaceNames(options.name)
  const reap = startReaper(Object.values(names))
  const cgroup = options.withCgroup === true ? addNodeCgroup(options.name) : undefined
  const world = new World(names, reap, cgroup)
  try {
    await world.build(options.ports ?? backendPorts)
    return world
  } catch (error) {
    await world.close()
    throw error
  }
}

function nodeValues(): Readonly<Record<string, string>> {
  const bridgingValues = existsSync('/proc/sys/net/bridge') ? bridging : {}
  return { ...everywhere, ...forwarding, ...bridgingValues }
}

/** A small cluster network inside network namespaces: topology.ts lists its places. */
export class World {
  readonly namespaces: NamespaceNames
  /** Whether backends serve SCTP: only if the kernel has it. */
  readonly hasSctp = hasSctp()
  /** Folder of the cgroup that clients on the node are in; undefined: that of this process. */
  readonly cgroup: string | undefined
  readonly #entersItself = mayEnterNamespaces()
  readonly #reap: () => Promise<void>
  #agents: ReturnType<typeof startAgents<Place>> | undefined
  readonly #children = new Set<ChildProcessWithoutNullStreams>()

  constructor(namespaces: NamespaceNames, reap: () => Promise<void>, cgroup: string | undefined) {
    this.namespaces = namespaces
    this.cgroup = cgroup
    this.#reap = reap
  }

  async build(ports: readonly number[]): Promise<void> {
    await addNamespaces(places.map((place) => this.namespaces[place]))
    this.#agents = startAgents(
      new Map(
        places.map((place) => {
          const cgroup = isOnNode(place) ? this.cgroup : undefined
          return [place, { namespace: this.namespaces[place], cgroup }]
        }),
      ),
    )
    // Interfaces inherit the defaults when they are made, so these come first.
    await this.#everywhere((agent, place) =>
      agent.write(place === 'node' || place === 'node-2' ? nodeValues() : everywhere),
    )
    // Run inside a namespace: in a user namespace there are no rights outside of it.
    await ipBatch(linkCommands(this.namespaces), this.namespaces.node)
    for (const round of addressRounds()) {
      await Promise.all(
        [...round].map(([place, commands]) => ipBatch(commands, this.namespaces[place])),
      )
    }
    await this.#everywhere((agent, place) =>
      agent.serve({
        name: place,
        addresses: addresses[place].flatMap((pair) => [pair.IPv4, pair.IPv6]),
        ports,
        protocols: this.hasSctp ? ['TCP', 'UDP', 'SCTP'] : ['TCP', 'UDP'],
      }),
    )
  }

  agent(place: Place): Agent {
    const agent = this.#agents?.agents.get(place)
    if (!agent) throw new Error(`use ${place}: the world is closed`)
    return agent
  }

  /** Runs a program inside a place and waits for it, on a busy machine for minutes. */
  async exec(place: Place, argv: readonly string[], options?: RunOptions): Promise<CommandOutput> {
    const start = (program: string, args: readonly string[]) =>
      runCommand(program, args, { timeoutMs: 600_000, ...options })
    const [program = '', ...args] = argv
    // The program starts before the thread is back. So one program starts, and not two.
    if (this.#entersItself && ofNetwork.test(program))
      return insideNamespace(this.namespaces[place], () => start(program, args))
    return start(...this.#inside(place, argv))
  }

  /** Starts a program inside a place; it is killed when the world closes. */
  spawn(place: Place, argv: readonly string[]): ChildProcessWithoutNullStreams {
    const child = spawn(...this.#inside(place, argv))
    this.#children.add(child)
    child.once('exit', () => this.#children.delete(child))
    return child
  }

  /** Removes the world and everything that runs in it. */
  async close(): Promise<void> {
    const exits = [...this.#children].map((child) => once(child, 'exit'))
    for (const child of this.#children) child.kill('SIGKILL')
    await Promise.all([...exits, this.#agents?.close()])
    this.#agents = undefined
    if (this.cgroup !== undefined) await removeCgroup(this.cgroup)
    await this.#reap()
  }

  /** `ip netns exec` mounts another /sys, in which no cgroups are. */
  #inside(place: Place, argv: readonly string[]): [program: string, args: string[]] {
    const name = this.namespaces[place]
    return this.cgroup === undefined
      ? ['ip', ['netns', 'exec', name, ...argv]]
      : ['nsenter', [`--net=/run/netns/${name}`, '--', ...argv]]
  }

  async #everywhere(act: (agent: Agent, place: Place) => Promise<void>): Promise<void> {
    await Promise.all(places.map((place) => act(this.agent(place), place)))
  }
}
