/** Userspace mode as an operator runs it: when it syncs, and what it reports about itself. */
import { chmod, mkdir, rm, writeFile } from 'node:fs/promises'
import { once } from 'node:events'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { program, runProxy } from '../support/program.js'
import { watchProxy } from '../../lib/lab/playground/proxy-process.js'
import {
  ask,
  get,
  oneProxyWorld,
  service,
  skip,
  sliceOf,
  stopping,
  withProxyWorld,
  write,
} from './proxy-world.js'
import { addressOf, type Place } from '../../lib/lab/world/topology.js'
import { endpoint, rawService, rawSlice } from '../state/objects.js'
import type { World } from '../../lib/lab/world/world.js'
import { until } from '../support/until.js'

const inWorld = oneProxyWorld(t, 'userspace')

const args = ['--proxy-mode', 'userspace', '--takeover-folder', '']

/** The value of one series of /metrics, or NaN if there is none. */
async function metric(world: World, series: RegExp): Promise<number> {
  const { body } = await get(world, 'http://127.0.0.1:10249/metrics')
  const line = body.split('\n').find((text) => series.test(text))
  return Number(line?.split(' ').at(-1))
}

t.test('US73: a period that is set is kept, and nothing runs without a change', { skip }, (t) =>
  inWorld(async ({ world, folder }) => {
    await write(folder, 'all.yaml', service, sliceOf('pod-1'))
    const period = ['--iptables-min-sync-period', '1s']
    const proxy = runProxy(world, [...args, ...period, '--manifests', folder])
    const syncs = () => metric(world, /^kubeproxy_sync_proxy_rules_duration_seconds_count/)
    const lastAt = () => metric(world, /^kubeproxy_sync_proxy_rules_last_timestamp_seconds/)
    await stopping(proxy, async () => {
      await until('the first answer', async () => (await ask(world)) === 'pod-1')
      let before = NaN
      // What belongs to the start comes late on a busy machine.
      const isQuiet = async () => before === (before = await syncs())
      await until('a time without a sync', isQuiet, 1500)
      t.ok(before > 0)
      await write(folder, 'all.yaml', service, sliceOf('pod-1'))
      await delay(1500)
      t.equal(await syncs(), before, 'the same again is no change')

      await write(folder, 'all.yaml', service, sliceOf('pod-2'))
      await until('the first change', async () => (await ask(world)) === 'pod-2')
      const first = await lastAt()
      await write(folder, 'all.yaml', service, sliceOf('pod-3'))
      await until('the second change', async () => (await ask(world)) === 'pod-3')
      // A client may be answered a moment before the sync has ended.
      await until('the end of its sync', async () => (await syncs()) >= before + 2)
      const second = await lastAt()
      t.ok(second - first >= 1, `${second - first} s between the two`)
    })
  }),
)

t.test('US75: connections are counted, and /healthz fails while rules wait', { skip }, (t) =>
  inWorld(async ({ world, folder }) => {
    // These programs fail while a file is there, as iptables does while others hold its lock.
    const [programs, manifests] = [join(folder, 'programs'), join(folder, 'manifests')]
    const lock = join(folder, 'lock')
    for (const path of [programs, manifests]) await mkdir(path)
    for (const program of ['iptables-restore', 'iptables-nft-restore']) {
      const script = `#!/bin/sh\n[ -e ${lock} ] && exit 4\nexec /usr/sbin/${program} "$@"\n`
      await writeFile(join(programs, program), script)
      await chmod(join(programs, program), 0o755)
    }
    await write(manifests, 'all.yaml', service, sliceOf('pod-1'))
    const path = `PATH=${programs}:${process.env['PATH'] ?? ''}`
    const daemon = [...args, '--iptables-sync-period', '1s', '--manifests', manifests]
    const proxy = runProxy(world, daemon, undefined, ['env', path])
    const health = async () => (await get(world, 'http://127.0.0.1:10256/healthz')).status
    await stopping(proxy, async () => {
      await until('the first answer', async () => (await ask(world)) === 'pod-1')
      // The rules of IPv6 come after the first answer.
      await until('good health', async () => (await health()) === 200)
      const ofWeb = 'service="default/web:http",protocol="TCP"'
      const connections = new RegExp(`^kubeproxy_service_connections_total\\{.*${ofWeb}`)
      await until('the connection is counted', async () => (await metric(world, connections)) > 0)
      t.ok((await metric(world, /^kubeproxy_userspace_listeners/)) > 0)
      t.ok((await metric(world, /^kubeproxy_sync_proxy_rules_duration_seconds_count/)) > 0)

      await writeFile(lock, '')
      const spec = { clusterIP: '10.96.0.11', clusterIPs: ['10.96.0.11'] }
      await write(manifests, 'all.yaml', rawService({ spec }), sliceOf('pod-1'))
      await until('503', async () => (await health()) === 503)
      await rm(lock)
      await until('200', async () => (await health()) === 200)
    })
  }),
)

t.test('a terminal that is closed leaves no rule that leads to a closed port', { skip }, (t) =>
  inWorld(async ({ world, folder }) => {
    await write(folder, 'all.yaml', service, sliceOf('pod-1'))
    const given = [...args, '--hostname-override', 'node-1', '--manifests', folder]
    const child = world.spawn('node', [process.execPath, program, ...given])
    const proxy = watchProxy(child)
    await stopping(proxy, async () => {
      await until('the first answer', async () => (await ask(world)) === 'pod-1')
      const exited = once(child, 'exit')
      // Its shell sends the signal, and the kernel does, too.
      for (let count = 0; count < 2; count++) {
        child.kill('SIGHUP')
        await until('it is told', () => Promise.resolve(proxy.output().includes('stopping')))
      }
      await exited
      t.equal(proxy.exitCode(), 0)
      const { stdout } = await world.exec('node', ['iptables-save'])
      t.notMatch(stdout, 'KUBE-PORTALS')
    })
  }),
)

const families = ['IPv4', 'IPv6'] as const
const dnsIps = { IPv4: '10.96.0.53', IPv6: 'fd00:10:96::53' }
const udp = [{ name: 'dns', protocol: 'UDP', port: 53, targetPort: 8080 }]

function dnsOn(pod: Place): readonly object[] {
  const clusterIPs = Object.values(dnsIps)
  const spec = { clusterIP: clusterIPs[0], clusterIPs, ipFamilies: families, ports: udp }
  return [
    rawService({ name: 'dns', spec }),
    ...families.map((family) =>
      rawSlice({
        name: `dns-${family.toLowerCase()}`,
        service: 'dns',
        addressType: family,
        ports: [{ name: 'dns', protocol: 'UDP', port: 8080 }],
        endpoints: [endpoint(addressOf(pod, family), { node: 'node-1' })],
      }),
    ),
  ]
}

for (const end of ['stop', 'kill'] as const) {
  t.test(
    `US54, US55: a UDP client that keeps its socket is served in iptables mode after ${end}`,
    { skip },
    (t) =>
      withProxyWorld(`us-udp-${end}`, async ({ world, folder }) => {
        await write(folder, 'all.yaml', ...dnsOn('pod-1'))
        const client = world.agent('client-pod')
        const first = runProxy(world, [...args, '--manifests', folder])
        let isDone = false
        const latest = new Map<string, string>()
        const asking: Promise<void>[] = []
        await stopping(first, async () => {
          for (const family of families) {
            const flow = { protocol: 'UDP', host: dnsIps[family], port: 53 } as const
            const isServed = async () =>
              (await client.flow({ ...flow, timeoutMs: 300 }))[0]?.outcome === 'reply'
            await until(`the first answer by ${family}`, isServed)
            await client.flow({ ...flow, keepAs: family })
            asking.push(
              (async () => {
                while (!isDone) {
                  latest.set(family, (await client.send(family, 1000)).outcome)
                  // The kernel limits how many refusals it sends each second.
                  await delay(20)
                }
              })(),
            )
          }
          await first[end]()
        })
        await delay(500)
        const led = await ledFlows(world)
        if (end === 'kill') t.not(led, 0, 'nobody could clean up')
        else t.equal(led, 0, 'the kernel has forgotten where they went')
        const second = ['--proxy-mode', 'iptables', '--manifests', folder]
        await stopping(runProxy(world, second), async () => {
          const areServed = () => families.every((family) => latest.get(family) === 'reply')
          await until('answers to the same sockets', areServed)
          // The rules of the first are removed in this time.
          await delay(1500)
          latest.clear()
          await until('further answers', areServed)
        })
        isDone = true
        await Promise.all(asking)
      }),
  )
}

/** How many UDP flows to Services the kernel translates to an endpoint. */
async function ledFlows(world: World): Promise<number> {
  const conntrack = new URL('../../lib/kernel/conntrack.js', import.meta.url).href
  const script = `
    const { listTrackedFlows } = await import(process.argv[1])
    const { isDeepStrictEqual } = await import('node:util')
    const isLed = ({ protocol, destination, answeredBy }) =>
      protocol === 'UDP' && !isDeepStrictEqual(destination, answeredBy)
    const flows = [await listTrackedFlows('IPv4'), await listTrackedFlows('IPv6')]
    console.log(flows.flat().filter(isLed).length)`
  const argv = [process.execPath, '--input-type=module', '-e', script, conntrack]
  return Number((await world.exec('node', argv)).stdout)
}

t.test('US13: a node port in use is reported, counted and tried again', { skip }, (t) =>
  inWorld(async ({ world, folder }) => {
    const listen = `require('net').createServer().listen(30080, '0.0.0.0', () => console.log('listening'))`
    const other = world.spawn('node', [process.execPath, '-e', listen])
    await once(other.stdout, 'data')
    const ports = [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080, nodePort: 30_080 }]
    const spec = { type: 'NodePort', ports }
    await write(folder, 'all.yaml', rawService({ spec }), sliceOf('pod-1'))
    const proxy = runProxy(world, [
      ...args,
      ...['--iptables-sync-period', '1s', '--manifests', folder],
    ])
    const askNodePort = async () => {
      const host = addressOf('node', 'IPv4')
      const flow = { protocol: 'TCP', host, port: 30_080, timeoutMs: 500 } as const
      return (await world.agent('outside').flow(flow))[0]?.backend
    }
    await stopping(proxy, async () => {
      await until('the ClusterIP', async () => (await ask(world)) === 'pod-1')
      t.equal(await askNodePort(), undefined)
      const told = /node port 30080\/TCP is in use by another program.*will retry/
      await until('the report', () => told.test(proxy.output()))
      const failures = /^kubeproxy_sync_failures_total\{ip_family="IPv4"/
      await until('the count', async () => (await metric(world, failures)) > 0)
      other.kill('SIGKILL')
      await until('the node port', async () => (await askNodePort()) === 'pod-1')
    })
  }),
)
