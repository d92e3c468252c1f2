import t from 'tap'
import { fileURLToPath } from 'node:url'
import { setTimeout as delay } from 'node:timers/promises'
import { runProxy } from '../../lib/playground/proxy-process.js'
import type { World } from '../../lib/world/world.js'
import {
  ask,
  clusterIp,
  service,
  skip,
  sliceOf,
  stopping,
  until,
  withStage,
  write,
} from './stage.js'

/** `trace` and `top` beside a daemon, over connections that pods really make. */

const main = fileURLToPath(new URL('../../lib/cli/main.js', import.meta.url))
const kubeProxy = (world: World, ...args: string[]) =>
  world.exec('node', [process.execPath, main, ...args])

interface Hop {
  readonly where: string
  readonly rule: string
  readonly owner: string
}

interface Story {
  readonly from: string
  readonly to: string
  readonly inInterface: string
  readonly end: string
  readonly destination: string
  readonly hops: readonly Hop[]
  readonly afterwards: readonly string[]
}

/** Asks again and again while the command waits for a connection. */
async function traced(world: World): Promise<Story> {
  const running = kubeProxy(world, 'trace', `${clusterIp}:80`, '--timeout', '20', '--json')
  let isDone = false
  void running.catch(() => undefined).then(() => (isDone = true))
  while (!isDone) {
    await ask(world)
    await delay(100)
  }
  const { code, stdout, stderr } = await running
  if (code !== 0) throw new Error(stderr)
  return JSON.parse(stdout) as Story
}

for (const mode of ['nftables', 'iptables', 'userspace'] as const) {
  t.test(`trace follows a connection through the rules of ${mode} mode`, { skip }, async (t) => {
    await withStage(`trace-${mode}`, async ({ world, folder }) => {
      await write(folder, 'web.yaml', service, sliceOf('pod-1'))
      const proxy = runProxy(world, ['--proxy-mode', mode, '--manifests', folder])
      await stopping(proxy, async () => {
        await until('the Service answers', async () => (await ask(world)) === 'pod-1')
        const story = await traced(world)
        t.match(story.from, /^10\.244\.1\.10:\d+$/)
        t.equal(story.to, `${clusterIp}:80`)
        t.equal(story.inInterface, 'cbr0')
        t.equal(story.end, 'sent')
        const rules = story.hops.map(({ where, rule, owner }) => `${where} (${owner}): ${rule}`)
        if (mode === 'nftables') {
          t.match(
            rules.join('\n'),
            /ip kube-proxy services \(default\/web:http\): .*vmap @service-ips/,
          )
        } else if (mode === 'iptables') {
          t.match(rules.join('\n'), /ip nat KUBE-SERVICES \(default\/web:http\): .*10\.96\.0\.10/)
          t.match(rules.join('\n'), /ip nat KUBE-SVC-\S+ \(default\/web:http\): .*dnat/)
        } else {
          t.match(rules.join('\n'), /ip nat KUBE-PORTALS-CONTAINER .*redirect to :\d+/)
          t.match(
            story.afterwards[0],
            /^The proxy connected to 10\.244\.1\.21:8080 for default\/web:http/,
          )
        }
        if (mode !== 'userspace') {
          t.equal(story.destination, '10.244.1.21:8080')
          t.match(story.afterwards[0], /expects the answer from 10\.244\.1\.21:8080/)
        }
        const { stdout } = await world.exec('node', ['nft', 'list', 'tables'])
        t.notMatch(stdout, /kube-proxy-trace/, 'nothing of it stays')

        const running = kubeProxy(world, 'top', '--json')
        const { services } = JSON.parse((await running).stdout) as {
          services: { service: string; open: number; total?: number }[]
        }
        t.equal(services[0]?.service, 'default/web:http')
        if (mode !== 'nftables') t.ok((services[0]?.total ?? 0) > 1, 'connections are counted')
        if (mode !== 'userspace') t.ok((services[0]?.open ?? 0) > 1, 'the kernel tracks them')
      })
    })
  })
}

t.test('a trace that is killed leaves nothing in the kernel', { skip }, async (t) => {
  await withStage('trace-kill', async ({ world }) => {
    const argv = [process.execPath, main, 'trace', `${clusterIp}:80`]
    const child = world.spawn('node', argv)
    let said = ''
    child.stderr.setEncoding('utf8').on('data', (text: string) => (said += text))
    await until('it waits', () => said.includes('waiting for a connection'))
    const tables = async () => (await world.exec('node', ['nft', 'list', 'tables'])).stdout
    t.match(await tables(), /inet kube-proxy-trace-\d+/)
    child.kill('SIGKILL')
    await until('the kernel removed its table', async () => !(await tables()).includes('trace'))
    const pids = async () => (await world.exec('node', ['pgrep', '-f', '^nft monitor'])).stdout
    await until('nobody listens any more', async () => (await pids()) === '')
  })
})

t.test(
  'trace says what to do when nobody comes, or when the target is none',
  { skip },
  async (t) => {
    await withStage('trace-none', async ({ world }) => {
      const late = await kubeProxy(world, 'trace', `${clusterIp}:80`, '--timeout', '1')
      t.equal(late.code, 1)
      t.match(late.stderr, /none came within 1 s; --send makes one from this node/)
      const wrong = await kubeProxy(world, 'trace', 'web')
      t.equal(wrong.code, 2)
      t.match(wrong.stderr, /is not IP:PORT, such as 10\.96\.0\.10:80/)
      // What kubelet leaves to tell the node's flavour.
      const hint = ['iptables-legacy', '-t', 'mangle', '-N', 'KUBE-IPTABLES-HINT']
      await world.exec('node', hint)
      const legacy = await kubeProxy(world, 'trace', `${clusterIp}:80`)
      t.equal(legacy.code, 1)
      t.match(legacy.stderr, /iptables-legacy's, .*explain IP:PORT --live/)
    })
  },
)
