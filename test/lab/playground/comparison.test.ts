import t from 'tap'
import { chainIn, placeId } from '../../../lib/kernel/place.js'
import { walkIptables } from '../../../lib/inspect/explain/iptables-walk.js'
import { simulatedPlayground } from '../../../lib/lab/simulation/cluster.js'
import type { PageView } from '../../../lib/page/readers.js'

t.test('explain counts the rules that a packet is compared with, on each way', async (t) => {
  const chain = (name: string, ...texts: string[]) =>
    [placeId(chainIn('nat', name)), texts.map((text) => ({ text }))] as const
  const rules = new Map([
    chain('PREROUTING', '-j A'),
    chain(
      'A',
      '-d 10.0.0.1/32 -j DROP',
      '-m statistic --mode random --probability 0.5 -j DNAT --to-destination 10.1.0.1:80',
      '-j DNAT --to-destination 10.1.0.2:80',
      '-j DROP',
    ),
    chain('POSTROUTING'),
  ])
  const packet = {
    ...({ family: 'IPv4', protocol: 'TCP', source: '10.2.0.1', destination: '10.0.0.2' } as const),
    ...{ port: 80, inInterface: 'eth0', mark: 0, isDnated: false, isMasqueraded: false },
  }
  const ways = walkIptables(rules, packet, { localAddresses: new Set() })
  t.match(ways, [
    { packet: { destination: '10.1.0.1' }, rules: 3, chains: 2 },
    { packet: { destination: '10.1.0.2' }, rules: 4, chains: 2 },
  ])
})

type Costs = Readonly<Record<string, string>>

/** The costs of each of the two modes. */
function costsIn({ comparison }: PageView): readonly Costs[] {
  return comparison.map(({ costs }) =>
    Object.fromEntries(costs.map(({ name, value }) => [name, value])),
  )
}

t.test('in ipvs mode the way is the one of the chosen scheduler', async (t) => {
  const stop = new AbortController()
  t.teardown(() => stop.abort())
  const playground = simulatedPlayground(stop.signal)
  const isShown = ({ busy, path, pending }: PageView) =>
    busy === '' && pending === '' && path.ways.length === 3
  const shown = async () => {
    while (!isShown(playground.view())) await new Promise((resolve) => setTimeout(resolve, 20))
  }
  await shown()
  await playground.perform({ do: 'mode', mode: 'ipvs' })
  for (const scheduler of ['rr', 'sh']) {
    await playground.perform({ do: 'scheduler', scheduler })
    await shown()
    await playground.perform({ do: 'compare', modes: ['ipvs', 'nftables'] })
    const { path, comparison } = playground.view()
    for (const { ways } of [path, comparison[0]?.path ?? path]) {
      t.same(
        ways.map(({ hops }) => hops.some(({ why }) => why.includes(`(scheduler ${scheduler})`))),
        [true, true, true],
        scheduler,
      )
    }
  }
})

t.test('two modes are compared by what their plans do to a connection', async (t) => {
  const stop = new AbortController()
  t.teardown(() => stop.abort())
  const playground = simulatedPlayground(stop.signal)
  const until = async (isThere: (view: PageView) => boolean) => {
    while (!isThere(playground.view())) await new Promise((resolve) => setTimeout(resolve, 20))
  }
  const compare = async (...modes: string[]) => {
    await playground.perform({ do: 'compare', modes })
    return costsIn(playground.view())
  }
  await until(({ busy, path, pending }) => busy === '' && pending === '' && path.ways.length === 3)
  t.same(playground.view().comparison, [])

  const [userspace, iptables] = await compare('userspace', 'iptables')
  const through = {
    'its bytes pass kube-proxy': 'yes, all of them',
    'sockets of kube-proxy': '2 for each connection',
    'a pod that does not answer': 'kube-proxy tries the next one',
  }
  const past = { 'its bytes pass kube-proxy': 'no', 'sockets of kube-proxy': 'none' }
  t.match(userspace, { ...through, 'its address is replaced': 'in every packet' })
  t.match(iptables, { ...past, 'the pod sees': 'the sender' })
  const hasCounters = playground
    .view()
    .comparison.map(({ path }) => path.shared.some(({ counter }) => counter !== ''))
  t.same(hasCounters, [true, false], 'the kernel counts for the mode that runs')
  t.match(await compare('ipvs', 'nftables'), [past, past])
  t.match(await compare('nftables', 'ebpf'), [
    { 'its address is replaced': 'in every packet' },
    {
      'its address is replaced': 'once, by connect()',
      'rules compared with its first packet': '0',
    },
  ])
  await playground.perform({ do: 'sender', sender: 'outside' })
  await playground.perform({ do: 'target', target: 'NodePort' })
  t.match(await compare('iptables', 'ebpf'), [
    { 'the pod sees': 'an address of the node' },
    { 'its address is replaced': 'in every packet', 'the pod sees': 'an address of the node' },
  ])

  await playground.perform({ do: 'sender', sender: 'client-pod' })
  await playground.perform({ do: 'target', target: 'ClusterIP' })
  const others = (each: Costs | undefined) =>
    Number(/(\d+) of other/.exec(each?.['rules compared with its first packet'] ?? '')?.[1] ?? 0)
  const before = (await compare('iptables', 'nftables')).map(others)
  const spec = '{ selector: { app: web }, ports: [{ port: 80, targetPort: 8080 }] }'
  const yaml = `{ apiVersion: v1, kind: Service, metadata: { name: another }, spec: ${spec} }`
  await playground.perform({ do: 'apply', yaml })
  await until((view) => view.pending === '' && others(costsIn(view)[0]) !== before[0])
  const after = costsIn(playground.view()).map(others)
  t.same(after, [(before[0] ?? 0) + 1, before[1]], 'a list grows, a table does not')

  await t.rejects(compare('nftables'), /name two of userspace, iptables/)
  await t.rejects(compare('nftables', 'none'), /name two of userspace, iptables/)
  t.same(await compare(), [])
})
