/** `--userspace-source-address` on a node: what it writes, what it leaves, and after a crash. */
import { once } from 'node:events'
import { mkdtempSync, openSync, rmSync, writeFileSync } from 'node:fs'
import { connect, createServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { runCommand } from '../../support/run-command.js'
import type { Run } from '../../../lib/kernel/iptables.js'
import { runProgram } from '../../../lib/kernel/iptables/command.js'
import { joinNetworkNamespace } from '../../../lib/lab/world/namespaces.js'
import { addressOf, families } from '../../../lib/lab/world/topology.js'
import { createWorld } from '../../../lib/lab/world/world.js'
import {
  linux,
  openForeignCommits,
  openIptables,
} from '../../../lib/modes/userspace/portals/open-portals.js'
import { SourceRouting } from '../../../lib/modes/userspace/portals/source-routing.js'
import type { FlowRequest } from '../../../lib/lab/world/agent-protocol.js'
import { kubeProxy, startDaemon } from '../../support/live-daemon.js'
import { patienceMs, until } from '../../support/until.js'

const skip = process.getuid?.() === 0 ? false : 'needs root for network namespaces'
const clusterIps = { IPv4: '10.96.0.10', IPv6: 'fd00:10:96::10' } as const
const port = 8080
/** No pod serves it. */
const closedPort = 9

t.test('what keeps the address of clients comes and goes', { skip }, async (t) => {
  const world = await createWorld({ name: 'source' })
  const home = openSync('/proc/self/ns/net', 'r')
  joinNetworkNamespace(world.namespaces.node)
  const folder = mkdtempSync(join(tmpdir(), 'source-address-'))
  t.teardown(async () => {
    joinNetworkNamespace(`../../proc/self/fd/${home}`)
    rmSync(folder, { recursive: true })
    await world.close()
  })
  const write = (annotation?: string, portOfPod1 = port) =>
    writeFileSync(join(folder, 'web.json'), JSON.stringify(manifests(annotation, portOfPod1)))
  write()
  const start = (sourceAddress?: string, ...more: string[]) =>
    startDaemon(
      t,
      'userspace',
      '--manifests',
      folder,
      '--hostname-override',
      'node',
      ...(sourceAddress === undefined ? [] : [`--userspace-source-address=${sourceAddress}`]),
      '--userspace-workers=1',
      ...more,
    )
  const flow = async (request: Pick<FlowRequest, 'protocol' | 'host'> & Partial<FlowRequest>) =>
    (await world.agent('client-pod').flow({ port, timeoutMs: patienceMs, ...request }))[0]
  const clean = await leftBehind()
  /** The addresses that one of the two endpoints sees as the client's. */
  const sources = async (backend: 'pod-1' | 'pod-4' = 'pod-4') => {
    const seen = []
    for (const family of families) {
      for (const protocol of ['TCP', 'UDP'] as const) {
        let answer = await flow({ protocol, host: clusterIps[family] })
        while (answer?.outcome === 'reply' && answer.backend !== backend) {
          answer = await flow({ protocol, host: clusterIps[family] })
        }
        seen.push(answer?.source === addressOf('client-pod', family) ? 'kept' : 'hidden')
      }
    }
    return [...new Set(seen)]
  }

  let nextPort = 33_000
  /** Ports from which the client has just asked the Service, and who answered. */
  const usedPorts = async () => {
    const used = []
    for (const family of families) {
      const fromPort = nextPort++
      const answer = await flow({ protocol: 'TCP', host: clusterIps[family], fromPort })
      used.push({ family, fromPort, backend: answer?.backend ?? '' })
    }
    return used
  }
  /** The client asks the same endpoints from the same ports, without the Service. */
  const reuse = async (t: Test, used: Awaited<ReturnType<typeof usedPorts>>) => {
    for (const { family, fromPort, backend } of used) {
      const host = addressOf(backend === 'pod-1' ? 'pod-1' : 'pod-4', family)
      const answer = await flow({ protocol: 'TCP', host, fromPort })
      t.match(answer, { outcome: 'reply', backend }, `${family} from port ${fromPort}`)
    }
  }

  await t.test('a killed process leads no packet astray', async (t) => {
    const daemon = await start('keep')
    t.same(await sources(), ['kept'])
    t.same(await sources('pod-1'), ['kept'], 'between pods of one bridge')
    const used = { from: 31_000 }
    for (const family of families) {
      for (const protocol of ['TCP', 'UDP'] as const) {
        const fromPort = used.from++
        await flow({ protocol, host: clusterIps[family], fromPort })
      }
    }
    await daemon.end('SIGKILL')
    t.not(await leftBehind(), clean, 'it had no time to remove anything')
    let again = 31_000
    for (const family of families) {
      for (const protocol of ['TCP', 'UDP'] as const) {
        const fromPort = again++
        const host = addressOf('pod-1', family)
        const answer = await flow({ protocol, host, fromPort })
        t.match(answer, { outcome: 'reply', backend: 'pod-1' }, `${protocol} ${family}`)
      }
    }
  })

  await t.test('the next process removes what it does not need', async (t) => {
    const lost = await connectionWithoutAddress()
    t.teardown(() => lost.close())
    const daemon = await start('hide')
    t.same(await sources(), ['hidden'])
    t.equal(await leftBehind(), clean)
    await daemon.end('SIGTERM')
  })

  await t.test('another mode leaves what connections of a draining process need', async (t) => {
    const draining = await start('keep', `--drain-timeout=${patienceMs}ms`)
    const kept = await flow({ protocol: 'TCP', host: clusterIps.IPv4, keepAs: 'kept' })
    t.equal(kept?.source, addressOf('client-pod', 'IPv4'))
    const ended = draining.end('SIGTERM')
    const savedIPv6 = () => run('ip6tables-save')
    await until(
      () => 'the process to drain',
      async () => (await savedIPv6()).includes(':KUBE-PORTALS-DRAIN'),
    )
    const next = await startDaemon(t, 'nftables', '--manifests', folder)
    // IPv4 is cleaned before.
    await until(
      () => 'nftables mode to remove the chains of userspace mode',
      async () => !(await savedIPv6()).includes(':KUBE-PORTALS-DRAIN'),
    )
    const answer = await world.agent('client-pod').send('kept', patienceMs)
    t.match(answer, { outcome: 'reply', backend: kept?.backend })
    await draining.end('SIGKILL')
    await ended
    await next.end('SIGTERM')
    await kubeProxy('cleanup')
    t.equal(await leftBehind(), clean)
  })

  await t.test('it is repaired while it runs, and removed at the end', async (t) => {
    const daemon = await start()
    t.same(await sources(), ['kept'])
    t.same(await sources('pod-1'), ['hidden'], 'auto does not rely on the routes of pods')
    const written = await leftBehind()
    // Each look starts six programs, and a repair takes seconds.
    const repaired = () => until('the repair', async () => (await leftBehind()) === written, 1000)
    for (const family of ['-4', '-6']) await run('ip', family, 'rule', 'del', 'table', '27504')
    for (const program of ['iptables', 'ip6tables']) await run(program, '-t', 'mangle', '-F')
    await repaired()
    t.same(await sources(), ['kept'])

    const ours = ['-t', 'mangle', '-R', 'KUBE-PORTALS-SOURCE', '1']
    for (const program of ['iptables', 'ip6tables']) await run(program, ...ours, '-j', 'RETURN')
    await repaired()
    t.pass('as many rules as before, but others')

    const handles = async () => run('nft', '--handle', 'list', 'table', 'ip', 'mangle')
    const before = await handles()
    t.match(before, /chain KUBE-PORTALS-SOURCE /)
    let started = 0
    const counted: Run = (...command) => {
      started++
      return runProgram(...command)
    }
    const open = () => openIptables('IPv4', counted)
    const routing = new SourceRouting('IPv4', open, await openForeignCommits(linux))
    await routing.ensure()
    t.equal(await handles(), before, 'what is right is not written again')
    const first = started
    await routing.ensure()
    t.equal(started, first, 'nobody has written since, so nothing is read')
    await run('nft', 'add', 'table', 'ip', 'another')
    await routing.ensure()
    t.ok(started > first, 'another program has written')
    routing.close()
    await daemon.end('SIGTERM')
    t.equal(await leftBehind(), clean)
  })

  await t.test('its rules are there once beside a rule of nft that hides the chain', async (t) => {
    const chain = ['ip', 'mangle', 'PREROUTING']
    await run('iptables', '-t', 'mangle', '-P', 'PREROUTING', 'ACCEPT')
    await run('nft', 'add', 'rule', ...chain, 'iifname', 'wan0', 'meta mark set ct mark')
    t.match(await run('iptables-save', '-t', 'mangle'), /incompatible/)
    const jumps = async () => (await run('nft', 'list', 'chain', ...chain)).match(/jump KUBE-/g)
    const routing = new SourceRouting('IPv4', () => openIptables('IPv4'))
    for (let count = 0; count < 3; count++) await routing.ensure()
    t.equal((await jumps())?.length, 1)
    await routing.remove()
    t.equal(await jumps(), null)
    routing.close()
    await run('nft', 'flush', 'chain', ...chain)
    t.equal(await leftBehind(), clean)
  })

  await t.test('a Service may choose otherwise', async (t) => {
    write('hide')
    const keeping = await start('auto')
    t.same(await sources(), ['hidden'])
    await keeping.end('SIGTERM')
    write('keep')
    const hiding = await start('hide')
    t.same(await sources(), ['kept'])
    const used = await usedPorts()
    await hiding.end('SIGKILL')
    t.equal((await kubeProxy('cleanup')).code, 0)
    t.equal(await leftBehind(), clean)
    await reuse(t, used)
  })

  await t.test('a client moves on when its endpoint refuses datagrams', async (t) => {
    write('keep', closedPort)
    const keeping = await start()
    const request = { protocol: 'UDP', repeatMs: 200 } as const
    for (const family of families) {
      // One of two clients in turn is sent to the closed port first.
      for (const which of ['one', 'the other']) {
        const answer = await flow({ ...request, host: clusterIps[family] })
        t.match(answer, { outcome: 'reply', backend: 'pod-4' }, `${family}, ${which}`)
      }
    }
    await keeping.end('SIGTERM')
    write()
  })

  await t.test('after it has ended, a client may use the same ports to an endpoint', async (t) => {
    const keeping = await start('keep')
    const used = await usedPorts()
    await keeping.end('SIGTERM')
    await reuse(t, used)
  })
})

/** A connection within this namespace whose client loses its address. No mode has made it. */
async function connectionWithoutAddress() {
  const ip = '198.51.100.77'
  const accepted: Socket[] = []
  const server = createServer((socket) => accepted.push(socket)).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('the server has no port')
  await run('ip', 'address', 'add', `${ip}/32`, 'dev', 'lo')
  const client = connect({ host: '127.0.0.1', port: address.port, localAddress: ip })
  await once(client, 'connect')
  await run('ip', 'address', 'del', `${ip}/32`, 'dev', 'lo')
  const close = () => {
    // Neither hears of the other's end.
    for (const socket of [client, ...accepted]) socket.destroy()
    server.close()
  }
  return { close }
}

/** Everything of the kind that this mode writes: routing rules, routes, marks. */
async function leftBehind(): Promise<string> {
  const texts = []
  for (const family of ['-4', '-6']) {
    texts.push(await run('ip', family, 'rule'))
    texts.push(await run('ip', family, 'route', 'show', 'table', 'all'))
  }
  for (const program of ['iptables-save', 'ip6tables-save']) {
    const saved = await run(program, '-t', 'mangle')
    texts.push(...saved.split('\n').filter((line) => line.startsWith('-A')))
  }
  return texts.join('\n')
}

async function run(program: string, ...args: readonly string[]): Promise<string> {
  return (await runCommand(program, args)).stdout
}

function manifests(annotation: string | undefined, portOfPod1: number) {
  const annotations = annotation ? { 'kube-proxy-ts/source-address': annotation } : {}
  const service = {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name: 'web', namespace: 'default', annotations },
    spec: {
      clusterIPs: [clusterIps.IPv4, clusterIps.IPv6],
      ports: [
        { name: 'tcp', port, protocol: 'TCP' },
        { name: 'udp', port, protocol: 'UDP' },
      ],
    },
  }
  const ofPod = (pod: 'pod-1' | 'pod-4', nodeName: string, targetPort: number) =>
    families.map((family) => ({
      apiVersion: 'discovery.k8s.io/v1',
      kind: 'EndpointSlice',
      metadata: {
        name: `web-${pod}-${family.toLowerCase()}`,
        namespace: 'default',
        labels: { 'kubernetes.io/service-name': 'web' },
      },
      addressType: family,
      ports: service.spec.ports.map((one) => ({ ...one, port: targetPort })),
      endpoints: [{ addresses: [addressOf(pod, family)], nodeName }],
    }))
  const slices = [...ofPod('pod-1', 'node', portOfPod1), ...ofPod('pod-4', 'node-2', port)]
  return { apiVersion: 'v1', kind: 'List', items: [service, ...slices] }
}
