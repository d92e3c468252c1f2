/**
 * Runs cases with the whole command: flags, manifests, sync loop, mode. `confined.test.ts` runs a few
 * of every topic with fewer rights, and with all rights nothing is refused that works there. So these
 * are a start, every client and endpoint, and a restart; all, if that test cannot run.
 */
import { once } from 'node:events'
import t from 'tap'
import { confinementSkip } from '../security/confinement.js'
import { hostPort, type IpFamily } from '../../lib/state/ip.js'
import { addressOf } from '../../lib/lab/world/topology.js'
import { createWorld } from '../../lib/lab/world/world.js'
import { get } from '../e2e/proxy-world.js'
import { readCases } from './case-file.js'
import { casesFolder } from './cases-folder.js'
import { DaemonSubject } from './daemon-subject.js'
import { cgroupSkip } from '../support/cgroup-client.js'
import { sampleOfCases } from './sample.js'
import { skips, withoutSctp } from './mode-profiles.js'
import { nodeManifest } from './cluster-objects.js'
import { buildCaseService, serviceManifest, sliceManifests } from './objects.js'
import { runCases } from './runner.js'
import { untilThere } from '../support/until.js'

const skip = process.getuid?.() === 0 ? false : 'network namespaces need root'
const cases = sampleOfCases().filter(
  ({ name }) => confinementSkip !== false || /^(S01|R13)\b/.test(name),
)
const modes = ['nftables', 'iptables', 'userspace', 'ebpf'] as const

for (const mode of modes) {
  const options = { skip: skip || (mode === 'ebpf' && cgroupSkip) }
  await t.test(`kube-proxy --manifests serves Services in ${mode} mode`, options, async (t) => {
    const world = await createWorld({ name: `daemon${mode}`, withCgroup: mode === 'ebpf' })
    t.teardown(() => world.close())
    const subject = new DaemonSubject({ mode })
    await runCases({
      world,
      subject,
      cases,
      mode,
      skips: [...skips[mode], withoutSctp],
      onResult: ({ name, outcome, failures }) => {
        t.equal(outcome, 'passed', [name, ...failures].join('\n'))
      },
    })
  })
}

await t.test('S20, E19: the health check node port counts local endpoints', { skip }, async (t) => {
  const world = await createWorld({ name: 'daemonhealth' })
  t.teardown(() => world.close())
  const subject = new DaemonSubject({ mode: 'nftables' })
  const [any] = readCases(casesFolder)
  await subject.start(world, any!.settings, [])
  t.teardown(() => subject.stop())
  const ask = async (family: IpFamily = 'IPv4') => {
    const url = `http://${hostPort(addressOf('node', family), 32_760)}/`
    const { status, body } = await get(world, url, 'outside')
    return { status, body: JSON.parse(body) as object }
  }
  const shorthand = {
    loadBalancer: true,
    externalTrafficPolicy: 'Local',
  }
  const apply = (endpoints: readonly string[], families: readonly IpFamily[] = ['IPv4']) => {
    const service = buildCaseService('web', { ...shorthand, endpoints, families }, 1)
    const upserts = [nodeManifest(null), serviceManifest(service), ...sliceManifests(service)]
    return subject.apply({ upserts, removals: [] })
  }
  await apply(['pod-1', 'pod-2', 'pod-4'])
  t.match(await ask(), { status: 200, body: { localEndpoints: 2 } })
  await apply(['pod-1 terminating', 'pod-2 unready', 'pod-4'])
  t.match(await ask(), { status: 503, body: { localEndpoints: 0 } })
  await t.rejects(ask('IPv6'), { code: 'ECONNREFUSED' }, 'the Service has no IPv6')
  await apply(['pod-1', 'pod-4'], ['IPv4', 'IPv6'])
  for (const family of ['IPv4', 'IPv6'] as const) {
    t.match(await ask(family), { status: 200, body: { localEndpoints: 1 } }, family)
  }
})

await t.test(
  'CT12 e2e kube_proxy.go:74: a connection that one side has ended is remembered for an hour',
  { skip },
  async (t) => {
    const world = await createWorld({ name: 'daemonwait' })
    t.teardown(() => world.close())
    const subject = new DaemonSubject({ mode: 'nftables' })
    const [any] = readCases(casesFolder)
    const service = buildCaseService('web', { ports: ['80 -> 9999/TCP'], endpoints: ['pod-1'] }, 1)
    const objects = [nodeManifest(null), serviceManifest(service), ...sliceManifests(service)]
    await subject.start(world, any!.settings, objects)
    t.teardown(() => subject.stop())
    // The server never closes its side.
    const net = "const net = require('net');"
    const server = `net.createServer({ allowHalfOpen: true }).listen(9999, () => console.log('up'))`
    const client = `net.connect(80, '${service.clusterIps.IPv4}').end().resume()`
    const listening = world.spawn('pod-1', [process.execPath, '-e', `${net} ${server}`])
    await once(listening.stdout, 'data')
    world.spawn('client-pod', [process.execPath, '-e', `${net} ${client}`])
    const table = () => world.exec('node', ['cat', '/proc/net/nf_conntrack'])
    const { code } = await table()
    if (code !== 0) {
      t.pass('skipped: this kernel does not list its connection table in /proc')
      return
    }
    const seconds = await untilThere('a connection that waits to be closed', async () =>
      Number(/ (\d+) CLOSE_WAIT .*dport=80 /.exec((await table()).stdout)?.[1] ?? 0),
    )
    t.ok(seconds > 3500 && seconds <= 3600, `${seconds} s left`)
  },
)
