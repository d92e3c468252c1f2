import { join } from 'node:path'
import type { Test } from 'tap'
import { addressOf } from '../../lib/lab/world/topology.js'
import { runProxy } from './program.js'
import type { ModeName } from '../../lib/config/config.js'
import type { World } from '../../lib/lab/world/world.js'
import { rawService, rawSlice, endpoint } from '../state/objects.js'
import {
  cleanAsUpstream,
  upstreamService,
  writeUpstreamRules,
  type UpstreamMode,
} from './upstream-rules.js'
import { patient, withProxyWorld, write, type ProxyWorld } from '../e2e/proxy-world.js'
import { until } from './until.js'

/** One proxy takes over a node from another, while connections are open. */

const { clusterIp, nodePort, udpPort } = upstreamService
const web = rawService({
  spec: {
    type: 'NodePort',
    clusterIP: clusterIp,
    clusterIPs: [clusterIp],
    ports: [
      { name: 'http', protocol: 'TCP', port: 80, targetPort: 8080, nodePort },
      { name: 'dns', protocol: 'UDP', port: udpPort, targetPort: 8080, nodePort: 30_053 },
    ],
  },
})
const slice = rawSlice({
  ports: [
    { name: 'http', protocol: 'TCP', port: 8080 },
    { name: 'dns', protocol: 'UDP', port: 8080 },
  ],
  endpoints: (['pod-1', 'pod-2'] as const).map((pod) =>
    endpoint(addressOf(pod, 'IPv4'), { node: 'node-1' }),
  ),
})

const node = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: 'node-1' },
  status: { addresses: [{ type: 'InternalIP', address: addressOf('node', 'IPv4') }] },
}

interface Kept {
  readonly place: 'client-pod' | 'outside' | 'node'
  readonly id: string
  readonly backend: string
}

/** Opens one connection of each kind. They are checked after every step. */
async function open(world: World): Promise<readonly Kept[]> {
  const node = addressOf('node', 'IPv4')
  const wanted = [
    ['client-pod', 'TCP', clusterIp, 80],
    ['node', 'TCP', clusterIp, 80],
    ['outside', 'TCP', node, nodePort],
    ['client-pod', 'UDP', clusterIp, udpPort],
  ] as const
  // The kernel forgets a UDP conversation that pauses for 30 s, as it may on a busy machine.
  await world.agent('node').write({ '/proc/sys/net/netfilter/nf_conntrack_udp_timeout': '600' })
  const kept: Kept[] = []
  for (const [place, protocol, host, port] of wanted) {
    const id = `${place} ${protocol}`
    const request = { protocol, host, port, keepAs: id, timeoutMs: patient }
    const [result] = await world.agent(place).flow(request)
    if (result?.backend === undefined) throw new Error(`${id}: ${JSON.stringify(result)}`)
    kept.push({ place, id, backend: result.backend })
  }
  return kept
}

async function stillOpen(
  t: Test,
  world: World,
  kept: readonly Kept[],
  when: string,
): Promise<void> {
  for (const { place, id, backend } of kept) {
    const result = await world.agent(place).send(id, patient)
    t.match(result, { outcome: 'reply', backend }, `${when}: ${id}`)
  }
}

/** New connections reach both endpoints. There are five tries, because User Mode Linux is slow. */
async function serves(t: Test, world: World, when: string): Promise<void> {
  for (const [place, protocol, host, port] of [
    ['client-pod', 'TCP', clusterIp, 80],
    ['node', 'TCP', clusterIp, 80],
    ['outside', 'TCP', addressOf('node', 'IPv4'), nodePort],
    ['client-pod', 'UDP', clusterIp, udpPort],
  ] as const) {
    let seen: readonly string[] = []
    for (let tries = 0; tries < 5 && seen.join() !== 'pod-1,pod-2'; tries++) {
      const request = { protocol, host, port, count: 20, timeoutMs: patient }
      const results = await world.agent(place).flow(request)
      seen = [...new Set(results.map(({ outcome, backend }) => backend ?? outcome))].sort()
    }
    t.same(seen, ['pod-1', 'pod-2'], `${when}: ${place} ${protocol}`)
  }
}

/** The chains of Kubernetes, each with its table. */
async function chainsOf(world: World): Promise<readonly string[]> {
  const { stdout } = await world.exec('node', ['iptables-save'])
  let table = ''
  return stdout.split('\n').flatMap((line) => {
    if (line.startsWith('*')) table = line.slice(1)
    const name = /^:(KUBE-\S+)/.exec(line)?.[1]
    return name === undefined ? [] : [`${table} ${name}`]
  })
}

const kubelets = ['filter KUBE-FIREWALL', 'mangle KUBE-IPTABLES-HINT', 'mangle KUBE-KUBELET-CANARY']

const hasNftTable = async (world: World) =>
  (await world.exec('node', ['nft', 'list', 'tables'])).stdout.includes('table ip kube-proxy')

/**
 * From kube-proxy in one mode to this program in another, and back. docs/migrate.md says what this
 * shows.
 */
export function takeover(t: Test, from: UpstreamMode, to: ModeName): Promise<void> {
  // The programs of ebpf mode see the processes of a cgroup, not of a network namespace.
  const options = { withCgroup: to === 'ebpf' }
  const act = async ({ world, folder }: ProxyWorld) => {
    await write(folder, 'web.yaml', node, web, slice)
    await writeUpstreamRules(world, from)
    await serves(t, world, 'kube-proxy')
    const opened = await open(world)
    // Only IPVS can continue the connections of IPVS. A userspace proxy carries UDP by itself, so a
    // UDP conversation begins anew.
    const kept =
      from === 'ipvs' && to !== 'ipvs'
        ? []
        : opened.filter(({ id }) => to !== 'userspace' || !id.endsWith('UDP'))
    const chainsBefore = await chainsOf(world)

    const proxy = runProxy(world, [
      ...['--proxy-mode', to, '--proxy-mode-fallback=none'],
      ...['--manifests', join(folder, 'web.yaml')],
      ...(world.cgroup === undefined ? [] : ['--ebpf-cgroup', world.cgroup, '--ebpf-bpffs=']),
    ])
    try {
      await until('its rules', () => /SyncProxyRules complete[^]*IPv6/.test(proxy.output()))
      const isClean = async () =>
        to === 'nftables' || to === 'ebpf'
          ? (await chainsOf(world)).every((chain) => kubelets.includes(chain))
          : from === to || !(await hasNftTable(world))
      await until('the removal of what it does not use', isClean)
      await stillOpen(t, world, kept, 'taken over')
      await serves(t, world, 'taken over')
      if (from === 'iptables' && to === 'iptables') {
        const unused = (await chainsOf(world)).filter((chain) => chain.includes('KUBE-SEP-'))
        t.same(unused, [], 'no chain is left that nobody uses')
      }
      if (from === 'iptables') {
        const chains = await chainsOf(world)
        t.same(
          kubelets.filter((chain) => !chains.includes(chain)),
          [],
          "kubelet's stay",
        )
      }
      await proxy.stop()
      await stillOpen(t, world, kept, 'stopped')
      // The sets of this program have kube-proxy's names but hold more, so kube-proxy cannot make
      // its own beside them. The way back begins with a cleanup there, see docs/migrate.md.
      if (from === 'ipvs' && to === 'ipvs') return

      await cleanAsUpstream(world, from)
      await writeUpstreamRules(world, from)
      await stillOpen(t, world, kept, 'given back')
      const chains = await chainsOf(world)
      const residue = chains.filter((chain) => !chainsBefore.includes(chain))
      // L16: between these two modes kube-proxy cleans nothing; docs/migrate.md says what to do.
      if (from !== 'ipvs' || to !== 'iptables') {
        t.same(residue, [], 'given back: not a chain more than before')
      }
      await serves(t, world, 'given back')
    } catch (error) {
      throw new Error(`${String(error)}\n${proxy.output()}`)
    } finally {
      await proxy.stop()
    }
  }
  return withProxyWorld(`take-${from}-${to}`, act, options)
}
