import t from 'tap'
import { setTimeout as delay } from 'node:timers/promises'
import { Daemon } from '../chaos/daemon.js'
import { rawService, rawSlice, endpoint } from '../state/objects.js'
import { addressOf } from '../../lib/lab/world/topology.js'
import { until } from '../support/until.js'
import { ask, clusterIp, skip, withProxyWorld, write } from './proxy-world.js'

const ports = [
  { name: 'http', port: 80, targetPort: 8080 },
  { name: 'dns', port: 53, targetPort: 8081, protocol: 'UDP' },
]
const service = rawService({ spec: { clusterIP: clusterIp, clusterIPs: [clusterIp], ports } })
const slice = rawSlice({
  endpoints: [endpoint(addressOf('pod-1', 'IPv4'), { node: 'node-1' })],
  ports: [
    { name: 'http', port: 8080 },
    { name: 'dns', port: 8081, protocol: 'UDP' },
  ],
})

/** The rules are read so often, where no news of the kernel tells of a change. */
const period = ['--iptables-sync-period', '2s']

const flush = {
  nftables: ['nft', 'flush', 'table', 'ip', 'kube-proxy'],
  iptables: ['iptables', '-t', 'nat', '-F'],
  userspace: ['iptables', '-t', 'nat', '-F'],
}

/** A rule of somebody else, as on most nodes. The kernel tracks connections only while one needs it. */
const tracking =
  'add table ip other; add chain ip other before { type filter hook prerouting priority 0; }; ' +
  'add rule ip other before ct state established accept'

for (const mode of ['nftables', 'iptables', 'userspace'] as const) {
  t.test(`${mode} mode: clients that came while rules were missing are served`, { skip }, (t) =>
    withProxyWorld(`flushed-${mode}`, async ({ world, folder }) => {
      const perform = async (command: readonly string[]) => {
        const { code, stderr } = await world.exec('node', command)
        t.equal(code, 0, stderr)
      }
      await perform(['nft', tracking])
      await write(folder, 'all.yaml', service, slice)
      const flags = ['--hostname-override', 'node-1', '--cluster-cidr', '10.244.0.0/16', ...period]
      const daemon = new Daemon(world, [...flags, '--proxy-mode', mode, '--manifests', folder])
      daemon.start()
      try {
        await until('the first answer', async () => (await ask(world)) === 'pod-1')
        daemon.signal('SIGSTOP')
        await perform(flush[mode])
        const client = { host: clusterIp, timeoutMs: 20_000 }
        const agent = world.agent('client-pod')
        const answers = [
          agent.flow({ ...client, protocol: 'TCP', port: 80 }),
          agent.flow({ ...client, protocol: 'UDP', port: 53, repeatMs: 500 }),
        ]
        await delay(700)
        daemon.signal('SIGCONT')
        const outcomes = (await Promise.all(answers)).flat().map(({ outcome }) => outcome)
        t.strictSame(outcomes, ['reply', 'reply'])
      } catch (error) {
        throw new Error(`${String(error)}\n${daemon.output()}`)
      } finally {
        await daemon.ended('SIGTERM')
      }
    }),
  )
}
