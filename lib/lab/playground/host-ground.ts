import { createServer, type Server } from 'node:net'
import { once } from 'node:events'
import { spawn } from 'node:child_process'
import { KernelError } from '../../errors.js'
import { NodeGauge } from './node-gauge.js'
import { backendPorts } from '../world/world.js'
import { hostSite, hostSites } from './site.js'
import { proxyCommand, watchProxy } from './proxy-process.js'
import { runCommand } from '../../kernel/command.js'
import { startAgent, type Agent } from '../world/agent.js'
import type { Ground } from './ground.js'
import type { Place } from '../world/topology.js'

/** Held for as long as the ground stands, so that no other playground takes the same addresses. */
const claimPort = 6442

/** Programs of this machine on 127.0.0.0/8: what is left where there are no rights at all. */
export async function layOnHost(): Promise<Ground> {
  const { second, claim } = await claimAddresses()
  const site = hostSite(second)
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
    ...['--hostname-override', 'node-1', '--cluster-cidr', site.clusterCidr],
    ...['--metrics-bind-address', metrics, '--healthz-bind-address', health],
    ...['--userspace-portals', 'addresses', '--nodeport-addresses', '127.0.0.0/8'],
    ...['--proxy-mode-fallback', 'none', '--takeover-folder', ''],
  ]
  const wrapper = await endsWithUs()
  return {
    site,
    gauge,
    // All places share a network, so a sender has to say which address is its own.
    flow: (place, request) =>
      agentOf(place).flow({
        ...(place === 'node' ? {} : { from: site.addresses[place][0] ?? '' }),
        fromPort: 0,
        ...request,
      }),
    serve: (place, name) =>
      agentOf(place).serve({
        name,
        addresses: site.addresses[place],
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
  const { first, count } = hostSites
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
