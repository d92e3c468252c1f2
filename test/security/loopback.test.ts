/** CVE-2020-8558: a neighbour reaches 127.0.0.1 of an open node, and not with our proxy. */
import t from 'tap'
import { runProxy } from '../support/program.js'
import { addressOf } from '../../lib/lab/world/topology.js'
import type { World } from '../../lib/lab/world/world.js'
import { ask, service, skip, sliceOf, stopping, withProxyWorld, write } from '../e2e/proxy-world.js'
import { until } from '../support/until.js'

const routeLocalnet = '/proc/sys/net/ipv4/conf/all/route_localnet'
const port = 7777

// Iptables mode needs a route to loopback only for node ports.
const withNodePort = {
  ...service,
  spec: {
    ...service.spec,
    type: 'NodePort',
    ports: [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080, nodePort: 30_080 }],
  },
}

const inShell = (world: World, place: 'node' | 'outside', script: string) =>
  world.exec(place, ['sh', '-ec', script])

/** Makes `outside` the attacker: it loses its own loopback and sends 127.0.0.1 to the node. */
async function becomeAttacker(world: World): Promise<void> {
  const node = addressOf('node', 'IPv4')
  const { code, stderr } = await inShell(
    world,
    'outside',
    `ip -4 address flush dev lo; echo 1 >${routeLocalnet}; ip route add 127.0.0.0/8 via ${node}`,
  )
  if (code !== 0) throw new Error(stderr)
}

/** The outcome of a connection to a server of the node that listens on 127.0.0.1 only. */
async function attack(world: World, timeoutMs = 500): Promise<string> {
  const [result] = await world.agent('outside').flow({
    protocol: 'TCP',
    host: '127.0.0.1',
    port,
    from: addressOf('outside', 'IPv4'),
    timeoutMs,
  })
  return result?.backend ?? result?.outcome ?? 'nothing'
}

const isReached = (world: World) => async () => (await attack(world, 5_000)) === 'secret'

t.test('CVE-2020-8558: no mode opens 127.0.0.1 of the node to its neighbours', { skip }, (t) =>
  withProxyWorld('loopback', async ({ world, folder }) => {
    await write(folder, 'web.yaml', withNodePort, sliceOf('pod-1'))
    await world.agent('node').serve({
      name: 'secret',
      addresses: ['127.0.0.1'],
      ports: [port],
      protocols: ['TCP'],
    })
    await becomeAttacker(world)
    const setting = async () => (await world.exec('node', ['cat', routeLocalnet])).stdout.trim()
    const serving = (mode: string, act: () => Promise<void>) => {
      const fallback = '--proxy-mode-fallback=none'
      const proxy = runProxy(world, ['--proxy-mode', mode, fallback, '--manifests', folder])
      return stopping(proxy, async () => {
        await until(`${mode} mode serves`, async () => (await ask(world)) === 'pod-1')
        await act()
      })
    }

    await inShell(world, 'node', `echo 1 >${routeLocalnet}`)
    await until('the open state: route_localnet, and no proxy', isReached(world))
    await inShell(world, 'node', `echo 0 >${routeLocalnet}`)

    for (const mode of ['nftables', 'userspace']) {
      await serving(mode, async () => {
        t.equal(await setting(), '0', `${mode} mode does not need the setting`)
        t.equal(await attack(world), 'dropped', mode)
      })
    }
    await serving('iptables', async () => {
      await until('iptables mode has a route to loopback', async () => (await setting()) === '1')
      t.equal(await attack(world), 'dropped', 'iptables')
    })
    t.equal(await attack(world), 'dropped', 'the guard stays when the proxy ends')
    await inShell(world, 'node', 'iptables -w -F KUBE-FIREWALL')
    await until('the open state: the guard is gone, so it was the guard', isReached(world))
  }),
)
