import { createServer, type Server } from 'node:net'
import { once } from 'node:events'
import { spawn } from 'node:child_process'
import { KernelError } from '../../errors.js'
import { NodeGauge } from './node-gauge.js'
import { backendPorts } from '../world/world.js'
import { proxyCommand, watchProxy } from './proxy-process.js'
import { runCommand } from '../../kernel/command.js'
import { startAgent, type Agent } from '../world/agent.js'
import { byPlace, type ClusterLayout, type TestBed } from './test-bed.js'
import type { Place } from '../world/topology.js'

/** Which numbers may follow 127 in a layout on this machine; those below are somebody else's. */
const loopbackNumbers = { first: 64, count: 190 }
const portsEach = 14

/**
 * Everything on one 127.x.0.0/16 of this machine, which has all those addresses anyway. Programs
 * stand for pods, each on an address of its own; the node is the machine itself.
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
    // Who asks without choosing an address on loopback has this one, and so has the proxy.
    addresses: byPlace((place) => [place === 'node' ? '127.0.0.1' : at(last[place])]),
    clusterCidr: at('0.0/18'),
    podCidrs: { node: [at('1.0/24')], 'node-2': [at('2.0/24')] },
    serviceCidrs: [at('96.0/20')],
    nodePorts: { from: firstPort, to: firstPort + portsEach - 1 },
    loadBalancers: at('113.'),
    api: { host: at('0.1'), port: 6443 },
    // Ports below 1024 are for root.
    ports: { web: 8000, echo: 7000 },
    config: {
      clusterCIDR: at('0.0/18'),
      nodePortAddresses: ['127.0.0.0/8'],
      'userspace.portals': 'addresses',
    },
    senders: ['client-pod', 'node', 'backend'],
    interfaces: {
      'client-pod': undefined,
      node: undefined,
      outside: undefined,
      backend: undefined,
    },
    limits: [
      `There are no rights over a network here, so both nodes and all pods are programs of this machine, each on an address of ${at('0.0/16')}.`,
      'Only userspace mode runs: without a rule, kube-proxy itself listens at the addresses of Services. What the other modes would make can be read under Rules.',
      'Nobody can send from outside, as 127.0.0.0/8 ends at this machine; node ports answer at 127.0.0.1 only.',
    ],
    built: `two nodes with pods out of programs on ${at('0.0/16')} of this machine`,
  }
}

/** Held for as long as the testBed stands, so that no other playground takes the same addresses. */
const claimPort = 6442

/** Programs of this machine on 127.0.0.0/8: what is left where there are no rights at all. */
export async function buildOnLoopback(): Promise<TestBed> {
  const { second, claim } = await claimAddresses()
  const layout = loopbackLayout(second)
  const node = `127.${second}.0.1`
  const [metrics, health] = [`${node}:10249`, `${node}:10256`]
  const gauge = new NodeGauge({ metrics: `http://${metrics}`, health: `http://${health}` })
  const agents = new Map<Place, Agent>()
  const agentOf = (place: Place) => {
    const known = agents.get(place)
    if (known) return known
    const agent = startAgent()
    agents.set(place, agent)
    return agent
  }
  const flags = [
    ...['--hostname-override', 'node-1', '--cluster-cidr', layout.clusterCidr],
    ...['--metrics-bind-address', metrics, '--healthz-bind-address', health],
    ...['--userspace-portals', 'addresses', '--nodeport-addresses', '127.0.0.0/8'],
    ...['--proxy-mode-fallback', 'none', '--takeover-folder', ''],
  ]
  const wrapper = await endsWithUs()
  return {
    layout,
    gauge,
    // All places share a network, so a sender has to say which address is its own.
    flow: (place, request) =>
      agentOf(place).flow({
        ...(place === 'node' ? {} : { from: layout.addresses[place][0] ?? '' }),
        fromPort: 0,
        ...request,
      }),
    serve: (place, name) =>
      agentOf(place).serve({
        name,
        addresses: layout.addresses[place],
        ports: backendPorts,
        protocols: ['TCP', 'UDP'],
      }),
    stopServing: (place) => agentOf(place).stopServing(),
    openApi: (url) => Promise.resolve(url.origin),
    startProxy: (args, onLine) => {
      const [file = '', ...rest] = [...wrapper, ...proxyCommand([...flags, ...args])]
      const child = spawn(file, rest)
      const kill = () => void child.kill('SIGKILL')
      process.on('exit', kill)
      child.once('exit', () => process.off('exit', kill))
      return watchProxy(child, onLine)
    },
    close: async () => {
      await Promise.all([...agents.values()].map((agent) => agent.close()))
      await gauge.close()
      const closed = once(claim, 'close')
      claim.close()
      await closed
    },
  }
}

/** The first free 127.x.0.0/16 from a place of chance on: whoever listens there has it. */
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
  throw new KernelError('failed', 'find addresses of 127.0.0.0/8 for a playground', {
    cause: failure,
  })
}

/** A daemon must not outlive a playground that was killed, where a tool of the system can see to it. */
async function endsWithUs(): Promise<readonly string[]> {
  const wrapper = ['--pdeathsig', 'KILL']
  const tried = await runCommand('setpriv', [...wrapper, 'true']).catch(() => undefined)
  return tried?.code === 0 ? ['setpriv', ...wrapper] : []
}
