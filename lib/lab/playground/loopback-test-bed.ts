import { createServer, type Server } from 'node:net'
import { once } from 'node:events'
import { spawn } from 'node:child_process'
import { KernelError, messageOf } from '../../errors.js'
import { apiPortOnNode } from './cluster-objects.js'
import { NodeGauge } from './node-gauge.js'
import { proxyCommand, watchProxy } from './proxy-process.js'
import { runCommand } from '../../kernel/command.js'
import { startAgent } from '../world/agent.js'
import type { TestBed } from './test-bed.js'
import type { Place } from '../world/topology.js'
import { byPlace, roomsWith, type ClusterLayout } from './cluster-layout.js'

/** The numbers that may follow 127 in a layout; other programs often use the lower ones. */
const loopbackNumbers = { first: 64, count: 190 }
const portsEach = 14

/**
 * Everything is on one 127.x.0.0/16 of this machine. Linux and Windows have all of these addresses,
 * macOS has 127.0.0.1 only. Programs stand for pods, each on an address of its own; the node is the
 * machine itself.
 */
function loopbackLayout(second: number): ClusterLayout {
  // All playgrounds of a machine share 127.0.0.1, so each has node ports of its own.
  const firstPort = 30_000 + (second - loopbackNumbers.first) * portsEach
  const at = (rest: string) => `127.${second}.${rest}`
  const last: Readonly<Record<Place, string>> = {
    node: '0.1',
    'node-2': '0.2',
    outside: '0.100',
    'client-pod': '1.10',
    'pod-1': '1.21',
    'pod-2': '1.22',
    'pod-3': '1.23',
    'remote-pod': '2.10',
    'pod-4': '2.24',
    'pod-5': '2.25',
  }
  return {
    // A program on loopback that binds no address sends from this one, and so does the proxy.
    addresses: byPlace((place) => [place === 'node' ? '127.0.0.1' : at(last[place])]),
    rooms: roomsWith((place, index) => [
      at(last[place].replace(/\d+$/, (number) => String(Number(number) + 10 * index))),
    ]),
    clusterCidr: at('0.0/18'),
    podCidrs: { node: [at('1.0/24')], 'node-2': [at('2.0/24')] },
    serviceCidrs: [at('96.0/20')],
    nodePorts: { from: firstPort, to: firstPort + portsEach - 1 },
    loadBalancers: at('113.'),
    api: { host: at('0.1'), port: apiPortOnNode },
    // Ports below 1024 are for root.
    ports: { web: 8000, echo: 7000, kubernetes: 8443 },
    config: {
      clusterCIDR: at('0.0/18'),
      nodePortAddresses: ['127.0.0.0/8'],
      'userspace.portals': 'addresses',
      featureGates: { AllowLoopbackEndpoints: true },
    },
    senders: ['client-pod', 'node', 'backend'],
    interfaces: {},
    limits: [
      `There are no network namespaces here, so both nodes and all pods are programs of this machine, each on an address of ${at('0.0/16')}.`,
      'Only userspace mode runs: kube-proxy itself listens at the addresses of Services, without rules. The rules of the other modes are shown under Rules.',
      'There is no sender outside, because 127.0.0.0/8 ends at this machine; node ports answer at 127.0.0.1 only.',
    ],
    built: `two nodes with pods out of programs on ${at('0.0/16')} of this machine`,
  }
}

/** A listener here claims the addresses for this playground, as long as the test bed exists. */
const claimPort = 6442

/** Programs of this machine on 127.0.0.0/8: this needs no rights at all. */
export async function buildOnLoopback(): Promise<TestBed> {
  const { second, claim } = await claimAddresses()
  const layout = loopbackLayout(second)
  const [metrics, health] = [`127.${second}.0.1:10249`, `127.${second}.0.1:10256`]
  const gauge = new NodeGauge({ metrics: `http://${metrics}`, health: `http://${health}` })
  const agent = startAgent()
  const flags = [
    ...['--hostname-override', 'node-1', '--cluster-cidr', layout.clusterCidr],
    ...['--metrics-bind-address', metrics, '--healthz-bind-address', health],
    ...['--userspace-portals', 'addresses', '--nodeport-addresses', '127.0.0.0/8'],
    ...['--proxy-mode-fallback', 'none', '--takeover-folder', ''],
    ...['--feature-gates', 'AllowLoopbackEndpoints=true'],
  ]
  const wrapper = await endingWithParent()
  return {
    layout,
    gauge,
    // All places share a network, so a sender must choose its own address.
    flow: (place, request) =>
      agent.flow({
        ...(place === 'node' ? {} : { from: layout.addresses[place][0] ?? '' }),
        fromPort: 0,
        ...request,
      }),
    serve: ({ addresses }, server, answered) =>
      agent.serve({ ...server, addresses, protocols: ['TCP', 'UDP'] }, answered),
    stopServing: (_, name) => agent.stopServing(name),
    openApi: (url) => Promise.resolve(url.origin),
    startProxy: (args, onLine) =>
      startOnThisMachine([...wrapper, ...proxyCommand([...flags, ...args])], onLine),
    close: async () => {
      await agent.close()
      await gauge.close()
      const closed = once(claim, 'close')
      claim.close()
      await closed
    },
  }
}

/** Starts the daemon as a child of this process, which kills it when it exits. */
function startOnThisMachine(
  [file = '', ...args]: readonly string[],
  onLine?: (line: string) => void,
) {
  const child = spawn(file, args)
  const kill = () => void child.kill('SIGKILL')
  process.on('exit', kill)
  child.once('exit', () => process.off('exit', kill))
  return watchProxy(child, onLine)
}

/** Why this system has no addresses for a playground; undefined if it has some. */
export async function refusalOfLoopback(): Promise<string | undefined> {
  try {
    const { claim } = await claimAddresses()
    claim.close()
    return undefined
  } catch (error) {
    return messageOf(error)
  }
}

/** The first free 127.x.0.0/16, searched from a random start. The listener claims it. */
async function claimAddresses(): Promise<{ readonly second: number; readonly claim: Server }> {
  const { first, count } = loopbackNumbers
  const start = Math.floor(Math.random() * count)
  let failure: unknown
  for (let tried = 0; tried < count; tried++) {
    const second = first + ((start + tried) % count)
    const claim = createServer()
    try {
      claim.listen({ host: `127.${second}.0.1`, port: claimPort })
      await once(claim, 'listening')
      claim.unref()
      return { second, claim }
    } catch (error) {
      failure = error
    }
  }
  const { code } = failure as NodeJS.ErrnoException
  const why = code === 'EADDRNOTAVAIL' ? 'this system has 127.0.0.1 only' : messageOf(failure)
  const reason = `find addresses of 127.0.0.0/8 for a playground: ${why}`
  throw new KernelError('failed', reason, { cause: failure })
}

/** A command that kills the daemon when the playground is killed; empty where it is missing. */
async function endingWithParent(): Promise<readonly string[]> {
  const wrapper = ['--pdeathsig', 'KILL']
  const tried = await runCommand('setpriv', [...wrapper, 'true']).catch(() => undefined)
  return tried?.code === 0 ? ['setpriv', ...wrapper] : []
}
