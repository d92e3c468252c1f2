import t from 'tap'
import { once } from 'node:events'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { addressOf } from '../../lib/lab/world/topology.js'
import { runProxy } from '../support/program.js'
import type { World } from '../../lib/lab/world/world.js'
import {
  ask,
  get,
  nftables,
  patient,
  service,
  skip,
  sliceOf,
  stopping,
  withProxyWorld,
  write,
} from './proxy-world.js'
import { until } from '../support/until.js'

/**
 * The daemon with an API server that stops and starts again. The real kubectl makes its objects.
 */

const command = fileURLToPath(new URL('../../lib/main.js', import.meta.url))

async function apiServer(world: World, kubeconfig: string): Promise<{ stop: () => Promise<void> }> {
  const listen = ['--listen', '127.0.0.1:6443', '--write-kubeconfig', kubeconfig]
  const child = world.spawn('node', [process.execPath, command, 'apiserver', ...listen])
  let said = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => (said += text))
  const exited = once(child, 'exit')
  await until('the API server serves', () => said.includes('try: kubectl'))
  return {
    stop: async () => {
      child.kill('SIGKILL')
      await exited
    },
  }
}

async function kubectl(world: World, kubeconfig: string, ...args: string[]): Promise<string> {
  const { code, stdout, stderr } = await world.exec('node', [
    'kubectl',
    '--kubeconfig',
    kubeconfig,
    ...args,
  ])
  if (code !== 0) throw new Error(`kubectl ${args.join(' ')}: ${stderr}`)
  return stdout
}

const node = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: 'node-1' },
  status: { addresses: [{ type: 'InternalIP', address: addressOf('node', 'IPv4') }] },
}

t.test(
  'rules are written only after the API server answers, and stay while it is down',
  { skip },
  (t) =>
    withProxyWorld('api', async ({ world, folder }) => {
      const kubeconfig = join(folder, 'kubeconfig')
      const first = await apiServer(world, kubeconfig)
      await first.stop()
      const proxy = runProxy(world, [...nftables, '--kubeconfig', kubeconfig])
      const readyz = async () => (await get(world, 'http://127.0.0.1:10256/readyz')).status
      await stopping(proxy, async () => {
        await until('it says that the API does not answer', () =>
          /ECONNREFUSED/.test(proxy.output()),
        )
        t.equal(await readyz(), 503, 'not ready yet')
        t.equal(
          (await world.exec('node', ['nft', 'list', 'tables'])).stdout,
          '',
          'R01: kernel untouched',
        )

        const second = await apiServer(world, kubeconfig)
        await write(folder, 'all.yaml', node, service, sliceOf('pod-1'))
        await kubectl(world, kubeconfig, 'apply', '-f', join(folder, 'all.yaml'))
        await until('first answer', async () => (await ask(world)) === 'pod-1')
        // The rules of IPv6 come after the first answer.
        await until('it is ready', async () => (await readyz()) === 200)
        t.equal((await get(world, 'http://127.0.0.1:10249/proxyMode')).body, 'nftables', 'H07')
        const { body } = await get(world, 'http://127.0.0.1:10249/metrics')
        t.match(body, /kubeproxy_sync_proxy_rules_duration_seconds_count\{ip_family="IPv4"\} [1-9]/)

        const setPort = (port: number) => {
          const patch = JSON.stringify({
            spec: { ports: [{ name: 'http', port, targetPort: 8080 }] },
          })
          return kubectl(world, kubeconfig, 'patch', 'service', 'web', '--type=merge', '-p', patch)
        }
        await setPort(8888)
        await until('the old port is refused', async () => (await ask(world)) === 'refused')
        await setPort(80)
        await until('the port is back', async () => (await ask(world)) === 'pod-1')

        await second.stop()
        t.equal(await ask(world, patient), 'pod-1', 'L21: rules stay while the API is away')
        const third = await apiServer(world, kubeconfig)
        await write(folder, 'all.yaml', node, service, sliceOf('pod-2'))
        await kubectl(world, kubeconfig, 'apply', '-f', join(folder, 'all.yaml'))
        await until('it caught up', async () => (await ask(world)) === 'pod-2')
        await third.stop()
      })
    }),
)
