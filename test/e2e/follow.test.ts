import t, { type Test } from 'tap'
import { addressOf } from '../../lib/lab/world/topology.js'
import { endpoint, rawService, rawSlice } from '../state/objects.js'
import { kubeProxy, traced, type Story } from '../support/traced.js'
import { program } from '../support/program.js'
import { runProxy } from '../support/program.js'
import type { World } from '../../lib/lab/world/world.js'
import {
  ask,
  clusterIp,
  oneProxyWorld,
  service,
  skip,
  sliceOf,
  stopping,
  withProxyWorld,
  write,
} from './proxy-world.js'
import { until } from '../support/until.js'

/** `trace` and `top` beside a daemon, with real connections of pods. */

const inWorld = oneProxyWorld(t, 'trace')

for (const mode of ['nftables', 'iptables', 'userspace'] as const) {
  t.test(`trace follows a connection through the rules of ${mode} mode`, { skip }, async (t) => {
    await inWorld(async ({ world, folder }) => {
      await write(folder, 'web.yaml', service, sliceOf('pod-1'))
      const proxy = runProxy(world, ['--proxy-mode', mode, '--manifests', folder])
      await stopping(proxy, async () => {
        await until('the Service answers', async () => (await ask(world)) === 'pod-1')
        const story = await traced(world)
        const rules = rulesOfSent(t, story)
        if (mode === 'nftables') {
          for (const rule of ['services', 'tcp-draw-4']) {
            t.match(
              rules.join('\n'),
              new RegExp(`ip kube-proxy ${rule} \\(default/web:http\\): .*map @`),
            )
          }
        } else if (mode === 'iptables') {
          t.match(rules.join('\n'), /ip nat KUBE-SERVICES \(default\/web:http\): .*10\.96\.0\.10/)
          t.match(rules.join('\n'), /ip nat KUBE-SVC-\S+ \(default\/web:http\): .*dnat/)
        } else {
          t.match(rules.join('\n'), /ip nat KUBE-PORTALS-CONTAINER .*dnat to \S+:\d+/)
          t.match(
            rules.join('\n'),
            /ip filter KUBE-PORTALS-DIRECT .* jump KUBE-PORTALS-LISTENER/,
            'to its end',
          )
          t.match(story.destination, /^10\.244\.1\.1:\d+$/, 'a listener of the node')
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

/** Makes the chain by which kubelet shows the backend of the node. */
async function useLegacy(world: World): Promise<void> {
  for (const program of ['iptables-legacy', 'ip6tables-legacy']) {
    await world.exec('node', [program, '-t', 'mangle', '-N', 'KUBE-IPTABLES-HINT'])
  }
}

/** The settings that a trace of iptables-legacy changes: rules in table raw, and their logger. */
async function legacyMarks(world: World): Promise<string> {
  const rules = await world.exec('node', ['iptables-legacy-save', '-t', 'raw'])
  const logger = await world.exec('node', ['cat', '/proc/sys/net/netfilter/nf_log/2'])
  return `${rules.stdout.match(/^-A.*$/gm)?.join('\n') ?? 'no rule'}, ${logger.stdout.trim()}`
}

/** Checks that the pod's connection reached an endpoint, and returns its rules. */
function rulesOfSent(t: Test, story: Story): readonly string[] {
  t.match(story.from, /^10\.244\.1\.10:\d+$/)
  t.equal(story.to, `${clusterIp}:80`)
  t.equal(story.inInterface, 'cbr0')
  t.equal(story.end, 'sent')
  return story.hops.map(({ where, rule, owner }) => `${where} (${owner}): ${rule}`)
}

for (const mode of ['iptables', 'userspace'] as const) {
  t.test(
    `trace follows a connection through the iptables-legacy rules of ${mode} mode`,
    { skip },
    (t) =>
      withProxyWorld(`legacy-${mode}`, async ({ world, folder }) => {
        await useLegacy(world)
        const before = await legacyMarks(world)
        t.match(before, /^no rule, /)
        await write(folder, 'web.yaml', service, sliceOf('pod-1'))
        const proxy = runProxy(world, ['--proxy-mode', mode, '--manifests', folder])
        await stopping(proxy, async () => {
          await until('the Service answers', async () => (await ask(world)) === 'pod-1')
          const story = await traced(world)
          const rules = rulesOfSent(t, story)
          if (mode === 'iptables') {
            t.match(
              rules.join('\n'),
              /ip nat KUBE-SERVICES \(default\/web:http\): .*-d 10\.96\.0\.10/,
            )
            t.match(rules.join('\n'), /ip nat KUBE-SVC-\S+ \(default\/web:http\): .*-j DNAT/)
            t.equal(story.destination, '10.244.1.21:8080')
            t.match(story.afterwards[0], /expects the answer from 10\.244\.1\.21:8080/)
          } else {
            t.match(
              rules.join('\n'),
              /ip nat KUBE-PORTALS-CONTAINER .*-j DNAT --to-destination \S+:\d+/,
            )
            t.match(story.afterwards[0], /^The proxy connected to 10\.244\.1\.21:8080/)
          }
          t.notMatch(rules.join('\n'), /TRACE/, 'its own mark is no part of the story')
          t.equal(await legacyMarks(world), before, 'nothing of it stays')
        })
      }),
  )
}

t.test('trace follows UDP over IPv6 through iptables-legacy, new flows only', { skip }, (t) =>
  withProxyWorld('legacy-udp', async ({ world, folder }) => {
    await useLegacy(world)
    const ip = 'fd00:10:96::10'
    const ports = [{ name: 'echo', protocol: 'UDP', port: 7, targetPort: 8080 }]
    const spec = { clusterIP: ip, clusterIPs: [ip], ipFamilies: ['IPv6'], ports }
    const slice = rawSlice({
      addressType: 'IPv6',
      ports: [{ name: 'echo', protocol: 'UDP', port: 8080 }],
      endpoints: [endpoint(addressOf('pod-1', 'IPv6'), { node: 'node-1' })],
    })
    await write(folder, 'echo.yaml', rawService({ name: 'web', spec }), slice)
    const proxy = runProxy(world, ['--proxy-mode', 'iptables', '--manifests', folder])
    await stopping(proxy, async () => {
      const request = { protocol: 'UDP', host: ip, port: 7, timeoutMs: 500 } as const
      const agent = world.agent('client-pod')
      const known = { ...request, fromPort: 40_001 }
      await until('an answer', async () => (await agent.flow(known))[0]?.backend === 'pod-1')
      // The known flow is already in the connection table, so it passes no rule of table nat.
      const story = await traced(world, [`[${ip}]:7`, '--protocol', 'UDP'], async () => {
        for (let count = 0; count < 5; count++) await agent.flow(known)
        await agent.flow(request)
      })
      t.not(story.from, `[${addressOf('client-pod', 'IPv6')}]:40001`)
      t.match(story.from, `[${addressOf('client-pod', 'IPv6')}]:`)
      t.equal(story.to, `[${ip}]:7`)
      t.equal(story.destination, `[${addressOf('pod-1', 'IPv6')}]:8080`)
      t.match(story.afterwards[0], /expects the answer from \[fd00:10:244:1::21\]:8080/)
    })
  }),
)

t.test('a killed trace of iptables-legacy leaves nothing in the kernel', { skip }, async (t) => {
  await withProxyWorld('legacy-kill', async ({ world }) => {
    await useLegacy(world)
    const before = await legacyMarks(world)
    const child = world.spawn('node', [process.execPath, program, 'trace', `${clusterIp}:80`])
    let said = ''
    child.stderr.setEncoding('utf8').on('data', (text: string) => (said += text))
    await until('it waits', () => said.includes('waiting for a connection'))
    t.match(await legacyMarks(world), /-d 10\.96\.0\.10\/32 .*-j TRACE[^]*, nfnetlink_log$/)
    const second = await kubeProxy(world, 'trace', `${clusterIp}:80`, '--timeout', '1')
    t.equal(second.code, 1)
    t.match(second.stderr, /another program, such as ulogd, listens to NFLOG group 0 here/)
    child.kill('SIGKILL')
    await until('the marks are gone', async () => (await legacyMarks(world)) === before)
  })
})

t.test('a killed trace leaves nothing in the kernel', { skip }, async (t) => {
  await inWorld(async ({ world }) => {
    const argv = [process.execPath, program, 'trace', `${clusterIp}:80`]
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
  'trace gives advice if no connection comes, or if there is no such target',
  { skip },
  async (t) => {
    await inWorld(async ({ world }) => {
      const late = await kubeProxy(world, 'trace', `${clusterIp}:80`, '--timeout', '1s')
      t.equal(late.code, 1)
      t.match(late.stderr, /none came within 1 s; --send makes one from this node/)
      const wrong = await kubeProxy(world, 'trace', 'web')
      t.equal(wrong.code, 2)
      t.match(wrong.stderr, /no proxy answers on .* give --config, --kubeconfig or --manifests\n$/)
    })
  },
)
