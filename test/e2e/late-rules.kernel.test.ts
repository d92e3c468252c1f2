/** Clients that come while a rule is missing. The kernel notes that they are not translated. */
import t, { type Test } from 'tap'
import { setTimeout as delay } from 'node:timers/promises'
import { Daemon } from '../chaos/daemon.js'
import { rawSlice, endpoint } from '../state/objects.js'
import { addressOf, bridgeName, type Place } from '../../lib/lab/world/topology.js'
import { patienceMs, until } from '../support/until.js'
import type { World } from '../../lib/lab/world/world.js'
import {
  ask,
  clusterIp,
  service,
  skip,
  withProxyWorld,
  write,
  type ProxyWorld,
} from './proxy-world.js'

const nodePort = 30_053
const withNodePort = {
  ...service,
  spec: {
    ...service.spec,
    type: 'NodePort',
    ports: [
      { name: 'http', port: 80, targetPort: 8080 },
      { name: 'dns', port: 53, targetPort: 8081, protocol: 'UDP', nodePort },
    ],
  },
}
const slice = rawSlice({
  endpoints: [endpoint(addressOf('pod-1', 'IPv4'), { node: 'node-1' })],
  ports: [
    { name: 'http', port: 8080 },
    { name: 'dns', port: 8081, protocol: 'UDP' },
  ],
})

/** A rule of somebody else, as on most nodes. The kernel tracks connections only while one needs it. */
const tracking =
  'add table ip other; add chain ip other before { type filter hook prerouting priority 0; }; ' +
  'add rule ip other before ct state established accept'

interface Late {
  /** While the proxy is stopped, after this the clients need other rules than there are. */
  readonly command: readonly string[]
  readonly client: Place
  readonly asks: readonly { protocol: 'TCP' | 'UDP'; host: string; port: number }[]
}

async function served(t: Test, world: World, daemon: Daemon, { command, client, asks }: Late) {
  await until('the first answer', async () => (await ask(world)) === 'pod-1')
  daemon.signal('SIGSTOP')
  const { code, stderr } = await world.exec('node', command)
  t.equal(code, 0, stderr)
  const agent = world.agent(client)
  // A UDP client that does not listen to refusals, and keeps its port.
  const again = { timeoutMs: 500, fromPort: 40_053 }
  const outcomeOf = async (one: Late['asks'][number]) => {
    const limit = performance.now() + patienceMs
    for (;;) {
      const [result] = await agent.flow({
        ...one,
        ...(one.protocol === 'UDP' ? again : { timeoutMs: patienceMs }),
      })
      if (result?.outcome === 'reply' || performance.now() > limit) return result?.outcome
      await delay(200)
    }
  }
  const answers = asks.map(outcomeOf)
  await delay(700)
  daemon.signal('SIGCONT')
  const outcomes = await Promise.all(answers)
  t.strictSame(
    outcomes,
    asks.map(() => 'reply'),
  )
}

const flush = {
  nftables: ['nft', 'flush', 'table', 'ip', 'kube-proxy'],
  iptables: ['iptables', '-t', 'nat', '-F'],
  userspace: ['iptables', '-t', 'nat', '-F'],
}

/** An address that a neighbour seems to have, so that nobody answers and nobody refuses. */
const lost = '10.244.1.99'
const counting =
  'add chain ip other sent { type filter hook postrouting priority 0; }; ' +
  `add rule ip other sent ip daddr ${lost} counter`
const losing = [
  'ip',
  'neighbour',
  'replace',
  lost,
  'lladdr',
  '02:00:00:00:00:99',
  'dev',
  bridgeName,
]

async function servedAfterLoss(t: Test, { world, folder }: ProxyWorld, daemon: Daemon) {
  await world.exec('node', ['nft', counting])
  await world.exec('node', [...losing, 'nud', 'permanent'])
  const lostSlice = { ...slice, endpoints: [endpoint(lost, { node: 'node-1' })] }
  await write(folder, 'all.yaml', withNodePort, lostSlice)
  const flow = { protocol: 'TCP', host: clusterIp, port: 80 } as const
  const list = ['nft', 'list', 'chain', 'ip', 'other', 'sent']
  const lostPackets = async () =>
    Number(/packets (\d+)/.exec((await world.exec('node', list)).stdout)?.[1])
  await until('the rules', async () => {
    await world.agent('client-pod').flow({ ...flow, timeoutMs: 100 })
    return (await lostPackets()) > 0
  })
  const before = await lostPackets()
  const answer = world.agent('client-pod').flow({ ...flow, timeoutMs: patienceMs })
  await until('an attempt that is lost', async () => (await lostPackets()) > before)
  await write(folder, 'all.yaml', withNodePort, slice)
  const [result] = await answer
  t.equal(result?.outcome, 'reply', daemon.output())
}

for (const mode of ['nftables', 'iptables', 'userspace'] as const) {
  t.test(`${mode} mode: clients that come while rules are missing`, { skip }, (t) =>
    withProxyWorld(`late-${mode}`, async (stage) => {
      const { world, folder } = stage
      t.equal((await world.exec('node', ['nft', tracking])).code, 0)
      await write(folder, 'all.yaml', withNodePort, slice)
      const daemon = new Daemon(world, [
        ...['--hostname-override', 'node-1', '--cluster-cidr', '10.244.0.0/16'],
        ...['--manifests', folder, '--proxy-mode', mode],
        ...['--nodeport-addresses', '192.168.50.0/24'],
      ])
      daemon.start()
      try {
        await t.test('clients are served after a repair of flushed rules', (t) =>
          served(t, world, daemon, {
            command: flush[mode],
            client: 'client-pod',
            asks: [
              { protocol: 'TCP', host: clusterIp, port: 80 },
              { protocol: 'UDP', host: clusterIp, port: 53 },
            ],
          }),
        )
        await t.test('a UDP client is served at a new address of the node', (t) =>
          served(t, world, daemon, {
            command: ['ip', 'address', 'add', '192.168.50.77/32', 'dev', 'eth0'],
            client: 'outside',
            asks: [{ protocol: 'UDP', host: '192.168.50.77', port: nodePort }],
          }),
        )
        if (mode === 'userspace') return
        await t.test('a client is served whose endpoint left before it answered', (t) =>
          servedAfterLoss(t, stage, daemon),
        )
      } finally {
        if (!t.passing()) t.comment(daemon.output())
        await daemon.ended('SIGTERM')
      }
    }),
  )
}

/** Its rules stay behind, and come before those of iptables mode, whose table they found. */
t.test('a UDP client is not left with an endpoint of the mode before', { skip }, (t) =>
  withProxyWorld('mode-before', async ({ world, folder }) => {
    const run = (...argv: readonly string[]) => world.exec('node', argv)
    await run('nft', tracking)
    await run('iptables', '-t', 'nat', '-A', 'PREROUTING', '-p', 'tcp', '--dport', '1')
    const left = { ...slice, endpoints: [endpoint('10.244.1.99', { node: 'node-1' })] }
    await write(folder, 'all.yaml', withNodePort, left)
    const flags = ['--hostname-override', 'node-1', '--cluster-cidr', '10.244.0.0/16']
    const daemon = new Daemon(world, [...flags, '--manifests', folder])
    const hasRules = async () =>
      (await run('nft', 'list', 'map', 'ip', 'kube-proxy', 'service-ips')).code === 0
    try {
      daemon.start('--proxy-mode', 'nftables')
      await until('the old rules', hasRules)
      await daemon.ended('SIGTERM')
      await write(folder, 'all.yaml', withNodePort, slice)
      daemon.start('--proxy-mode', 'iptables')
      const request = { protocol: 'UDP', host: clusterIp, port: 53, fromPort: 40_054 } as const
      let reply: string | undefined
      // It never stops sending, so the kernel's entry for it never expires.
      while (await hasRules()) await world.agent('client-pod').flow({ ...request, timeoutMs: 2 })
      const limit = performance.now() + patienceMs
      while (reply !== 'reply' && performance.now() < limit) {
        const [result] = await world.agent('client-pod').flow({ ...request, timeoutMs: 200 })
        reply = result?.outcome
      }
      t.equal(reply, 'reply', daemon.output())
    } finally {
      await daemon.ended('SIGTERM')
    }
  }),
)
