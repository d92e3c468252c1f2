import t from 'tap'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { tmpdir } from 'node:os'
import { addressOf, type Place } from '../../lib/world/topology.js'
import { createWorld, type World } from '../../lib/world/world.js'
import { runProxy, type RunningProxy } from '../../lib/playground/proxy-process.js'
import { endpoint, rawService, rawSlice } from '../state/objects.js'

/** The whole program as an operator starts it, on the node of a world, with real requests. */

const reason = process.getuid?.() === 0 ? false : 'network namespaces need root'
const clusterIp = '10.96.0.10'

interface Stage {
  readonly world: World
  readonly folder: string
}

async function withStage(name: string, act: (stage: Stage) => Promise<void>): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'kube-proxy-e2e-'))
  const world = await createWorld({ name })
  try {
    await act({ world, folder })
  } finally {
    await world.close()
    await rm(folder, { recursive: true })
  }
}

function write(folder: string, file: string, ...objects: object[]): Promise<void> {
  return writeFile(
    join(folder, file),
    objects.map((object) => JSON.stringify(object)).join('\n---\n'),
  )
}

const service = rawService({ spec: { clusterIP: clusterIp, clusterIPs: [clusterIp] } })
const sliceOf = (...places: Place[]) =>
  rawSlice({
    endpoints: places.map((place) => endpoint(addressOf(place, 'IPv4'), { node: 'node-1' })),
  })

async function ask(world: World): Promise<string> {
  const request = { protocol: 'TCP', host: clusterIp, port: 80, timeoutMs: 500 } as const
  const [result] = await world.agent('client-pod').flow(request)
  return result?.backend ?? result?.outcome ?? 'nothing'
}

async function until(what: string, condition: () => boolean | Promise<boolean>): Promise<void> {
  for (let tries = 0; tries < 200; tries++) {
    if (await condition()) return
    await delay(50)
  }
  throw new Error(`waited 10 s in vain: ${what}`)
}

/** Everything a daemon says and does not say belongs to the failure message. */
async function stopping(proxy: RunningProxy, act: () => Promise<void>): Promise<void> {
  try {
    await act()
  } catch (error) {
    throw new Error(`${String(error)}\n${proxy.output()}`)
  } finally {
    await proxy.stop()
  }
}

const nftables = ['--proxy-mode', 'nftables', '--iptables-min-sync-period', '0s']

t.test(
  'a broken file keeps its last good content, a malformed object its last good version',
  { skip: reason },
  (t) =>
    withStage('files', async ({ world, folder }) => {
      await write(folder, 'service.json', service)
      await write(folder, 'slice.json', sliceOf('pod-1'))
      const proxy = runProxy(world, [...nftables, '--manifests', folder])
      await stopping(proxy, async () => {
        await until('first answer', async () => (await ask(world)) === 'pod-1')
        t.match(proxy.output(), /Using nftables Proxier/)
        await writeFile(join(folder, 'slice.json'), '{ "broken": \n: nonsense')
        await until('report of the file', () => /slice\.json:\d+: /.test(proxy.output()))
        t.equal(await ask(world), 'pod-1')
        await write(folder, 'service.json', {
          ...service,
          spec: { ...service.spec, ports: [{ port: 99999 }] },
        })
        await until('report of the object', () =>
          proxy.output().includes('spec.ports[0].port 99999'),
        )
        t.equal(await ask(world), 'pod-1')
        await write(folder, 'service.json', service)
        await write(folder, 'slice.json', sliceOf('pod-2'))
        await until('the mended files count', async () => (await ask(world)) === 'pod-2')
      })
    }),
)

t.test(
  'L17, L18: rules outlive SIGTERM and SIGKILL, and the next start repairs what changed meanwhile',
  { skip: reason },
  (t) =>
    withStage('restart', async ({ world, folder }) => {
      await write(folder, 'all.json', service, sliceOf('pod-1'))
      const args = [...nftables, '--manifests', folder]
      const first = runProxy(world, args)
      await stopping(first, () => until('first answer', async () => (await ask(world)) === 'pod-1'))
      t.equal(await ask(world), 'pod-1', 'after SIGTERM')
      await write(folder, 'all.json', service, sliceOf('pod-2'))
      const second = runProxy(world, args)
      await stopping(second, () =>
        until('the new endpoint', async () => (await ask(world)) === 'pod-2'),
      )
      const third = runProxy(world, args)
      await delay(300)
      await third.kill()
      t.equal(await ask(world), 'pod-2', 'after SIGKILL in the middle of a start')
      await world.exec('node', ['nft', 'flush', 'chain', 'ip', 'kube-proxy', 'services'])
      t.equal(await ask(world), 'refused', 'somebody broke the rules while nobody watched')
      const fourth = runProxy(world, args)
      await stopping(fourth, () => until('repair', async () => (await ask(world)) === 'pod-2'))
    }),
)

t.test('a dry run prints what it would do and touches nothing', { skip: reason }, (t) =>
  withStage('dry', async ({ world, folder }) => {
    await write(folder, 'all.json', service, sliceOf('pod-1'))
    const proxy = runProxy(world, [...nftables, '--manifests', folder, '--dry-run'])
    await stopping(proxy, () =>
      until('the text', () => proxy.output().includes('add element ip kube-proxy')),
    )
    t.match(proxy.output(), /10\.96\.0\.10/)
    const { stdout } = await world.exec('node', ['nft', 'list', 'tables'])
    t.equal(stdout, '')
  }),
)

t.test('wrong flags end with 2, name the flag and touch nothing', { skip: reason }, (t) =>
  withStage('flags', async ({ world, folder }) => {
    const proxy = runProxy(world, ['--proxy-mode', 'magic', '--manifests', folder])
    await until('the end', () => !proxy.isRunning())
    t.match(proxy.output(), /--proxy-mode.*magic/)
    t.equal(proxy.exitCode(), 2)
  }),
)
