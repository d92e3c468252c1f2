import t from 'tap'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { addressOf } from '../../lib/lab/world/topology.js'
import { endpoint, rawService, rawSlice } from '../state/objects.js'
import { runProxy } from '../support/program.js'
import {
  ask,
  get,
  nftables,
  oneProxyWorld,
  patient,
  service,
  skip,
  sliceOf,
  stopping,
  write,
} from './proxy-world.js'
import { until } from '../support/until.js'

/** The whole program as an operator starts it, on the node of a world, with real requests. */

const inWorld = oneProxyWorld(t, 'daemon')

t.test(
  'a broken file keeps its last good content, and a malformed object its last good version',
  { skip },
  (t) =>
    inWorld(async ({ world, folder }) => {
      await write(folder, 'service.yaml', service)
      await write(folder, 'slice.yaml', sliceOf('pod-1'))
      const proxy = runProxy(world, [...nftables, '--manifests', folder])
      await stopping(proxy, async () => {
        await until('first answer', async () => (await ask(world)) === 'pod-1')
        t.match(proxy.output(), /Using nftables Proxier/)
        await writeFile(join(folder, 'slice.yaml'), '{ "broken": \n: nonsense')
        await until('report of the file', () => /slice\.yaml:\d+: /.test(proxy.output()))
        t.equal(await ask(world, patient), 'pod-1')
        await write(folder, 'service.yaml', {
          ...service,
          spec: { ...service.spec, ports: [{ port: 99999 }] },
        })
        await until('report of the object', () =>
          proxy.output().includes('spec.ports[0].port 99999'),
        )
        t.equal(await ask(world, patient), 'pod-1')
        await write(folder, 'service.yaml', service)
        await write(folder, 'slice.yaml', sliceOf('pod-2'))
        await until('the mended files count', async () => (await ask(world)) === 'pod-2')
      })
    }),
)

t.test(
  'L17, L18: rules stay after SIGTERM and SIGKILL, and the next start applies later changes',
  { skip },
  (t) =>
    inWorld(async ({ world, folder }) => {
      await write(folder, 'all.yaml', service, sliceOf('pod-1'))
      const args = [...nftables, '--manifests', folder]
      const first = runProxy(world, args)
      await stopping(first, () => until('first answer', async () => (await ask(world)) === 'pod-1'))
      t.equal(await ask(world, patient), 'pod-1', 'after SIGTERM')
      await write(folder, 'all.yaml', service, sliceOf('pod-2'))
      const second = runProxy(world, args)
      await stopping(second, () =>
        until('the new endpoint', async () => (await ask(world)) === 'pod-2'),
      )
      const third = runProxy(world, args)
      await delay(300)
      await third.kill()
      t.equal(await ask(world, patient), 'pod-2', 'after SIGKILL in the middle of a start')
      await world.exec('node', ['nft', 'flush', 'chain', 'ip', 'kube-proxy', 'services'])
      t.equal(await ask(world, patient), 'refused', 'somebody broke the rules while nobody watched')
      const fourth = runProxy(world, args)
      await stopping(fourth, () => until('repair', async () => (await ask(world)) === 'pod-2'))
    }),
)

t.test('a dry run prints what it would do and changes nothing', { skip }, (t) =>
  inWorld(async ({ world, folder }) => {
    await write(folder, 'all.yaml', service, sliceOf('pod-1'))
    const proxy = runProxy(world, [...nftables, '--manifests', folder, '--dry-run'])
    await stopping(proxy, () =>
      until('the text', () => proxy.output().includes('add element ip kube-proxy')),
    )
    t.match(proxy.output(), /10\.96\.0\.10/)
    const { stdout } = await world.exec('node', ['nft', 'list', 'tables'])
    t.equal(stdout, '')
  }),
)

t.test('a wrong flag ends the process with exit code 2 and changes nothing', { skip }, (t) =>
  inWorld(async ({ world, folder }) => {
    const proxy = runProxy(world, ['--proxy-mode', 'magic', '--manifests', folder])
    await until('the end', () => !proxy.isRunning())
    t.match(proxy.output(), /--proxy-mode.*magic/)
    t.equal(proxy.exitCode(), 2)
  }),
)

t.test('H15: userspace mode reports its name and serves health-check node ports', { skip }, (t) =>
  inWorld(async ({ world, folder }) => {
    const nodePort = 30080
    const port = 30999
    const ports = [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080, nodePort }]
    const withPolicy = (policy: object) =>
      rawService({ spec: { type: 'LoadBalancer', ports, ...policy } })
    const web = withPolicy({ externalTrafficPolicy: 'Local', healthCheckNodePort: port })
    const elsewhere = rawSlice({
      endpoints: [endpoint(addressOf('pod-4', 'IPv4'), { node: 'node-2' })],
    })
    await write(folder, 'all.yaml', web, sliceOf('pod-1', 'pod-2'))
    const proxy = runProxy(world, ['--proxy-mode', 'userspace', '--manifests', folder])
    await stopping(proxy, async () => {
      await until('first answer', async () => /^pod-/.test(await ask(world)))
      t.equal((await get(world, 'http://127.0.0.1:10249/proxyMode')).body, 'userspace')
      const health = `http://${addressOf('node', 'IPv4')}:${port}/`
      await until('the health port', async () => (await get(world, health)).status === 200)
      t.match(JSON.parse((await get(world, health)).body), { localEndpoints: 2 })
      await write(folder, 'all.yaml', web, elsewhere)
      await until('nobody local', async () => (await get(world, health)).status === 503)
      // As in upstream's test of HealthCheckNodePort, the port goes and comes with the policy.
      const isRefused = () =>
        get(world, health).then(
          () => false,
          () => true,
        )
      await write(folder, 'all.yaml', withPolicy({ externalTrafficPolicy: 'Cluster' }), elsewhere)
      await until('no health port with policy Cluster', isRefused)
      await write(folder, 'all.yaml', web, sliceOf('pod-1'))
      await until('the health port again', async () => !(await isRefused()))
      await until('one endpoint', async () => (await get(world, health)).status === 200)
    })
  }),
)
