/** What this program needs of IPVS and rtnetlink. The tests run with the fake and with kernels. */
import type { Test } from 'tap'
import { Ipvs, type VirtualServer } from '../../lib/kernel/ipvs.js'
import { Links } from '../../lib/kernel/links.js'
import { openChannel } from '../../lib/kernel/netlink/channel.js'
import { protocols } from '../../lib/kernel/netlink/protocol.js'
import type { OpenPipe } from '../../lib/kernel/netlink/socket.js'

export interface Edge {
  readonly openPipe?: OpenPipe
}

export function openEdge({ openPipe }: Edge): { readonly ipvs: Ipvs; readonly links: Links } {
  const options = openPipe ? { openPipe } : { receiveBufferBytes: 1 << 20 }
  return {
    ipvs: Ipvs.open(openChannel(protocols.generic, options)),
    links: new Links(openChannel(protocols.route, options)),
  }
}

const server = (ip: string, more: Partial<VirtualServer> = {}): VirtualServer => ({
  family: ip.includes(':') ? 'IPv6' : 'IPv4',
  protocol: 'TCP',
  ip,
  port: 80,
  scheduler: 'rr',
  schedulerFlags: 0,
  persistenceSeconds: 0,
  ...more,
})

const web = server('10.96.0.10')
const dns = server('fd00:96::a', { protocol: 'UDP', scheduler: 'mh', schedulerFlags: 0x18 })
const sctp = server('10.96.0.11', { protocol: 'SCTP', persistenceSeconds: 100 })
const one = { ip: '10.180.0.1', port: 8080, weight: 1 }
const two = { ip: '10.180.0.2', port: 8080, weight: 3 }

export async function ipvsBehaviour(t: Test, edge: Edge): Promise<void> {
  const { ipvs, links } = openEdge(edge)
  t.teardown(() => {
    ipvs.close()
    links.close()
  })

  await t.test('virtual and real servers are listed as they were written', async (t) => {
    const failures = await ipvs.change([
      { do: 'add-server', server: web },
      { do: 'add-server', server: dns },
      { do: 'add-server', server: sctp },
      { do: 'add-real', server: web, real: one },
      { do: 'add-real', server: web, real: two },
      { do: 'add-real', server: dns, real: { ip: 'fd00:180::1', port: 5353, weight: 1 } },
    ])
    t.strictSame(failures, [])
    const listed = [...(await ipvs.listServers('IPv4')), ...(await ipvs.listServers('IPv6'))]
    const plain = listed.map(({ stats: _stats, ...rest }) => rest)
    t.strictSame(
      plain.sort((a, b) => (a.ip < b.ip ? -1 : 1)),
      [web, sctp, dns],
    )
    const reals = await ipvs.listRealServers(web)
    t.match(
      reals.sort((a, b) => (a.ip < b.ip ? -1 : 1)),
      [{ ...one, activeConnections: 0, inactiveConnections: 0 }, two],
    )
    t.strictSame(await ipvs.listRealServers(server('10.96.0.99')), [])
  })

  await t.test('each refused change is reported, and the others are made', async (t) => {
    const failures = await ipvs.change([
      { do: 'add-server', server: web },
      { do: 'add-server', server: server('10.96.0.12', { scheduler: 'nope' }) },
      { do: 'add-real', server: server('10.96.0.12'), real: one },
      { do: 'add-real', server: web, real: one },
      { do: 'set-real', server: web, real: { ...one, ip: '10.180.0.9' } },
      { do: 'delete-real', server: web, real: { ...one, ip: '10.180.0.9' } },
      { do: 'delete-server', server: server('10.96.0.12') },
      { do: 'set-real', server: web, real: { ...two, weight: 0 } },
    ])
    t.strictSame(
      failures.map(({ change, error }) => [change.do, error.kind, error.detail]),
      [
        ['add-server', 'exists', 'EEXIST'],
        ['add-server', 'not-found', 'ENOENT'],
        ['add-real', 'not-found', 'ESRCH'],
        ['add-real', 'exists', 'EEXIST'],
        ['set-real', 'not-found', 'ENOENT'],
        ['delete-real', 'not-found', 'ENOENT'],
        ['delete-server', 'not-found', 'ESRCH'],
      ],
    )
    t.match(failures[1]?.error.message, /scheduler nope \(modprobe ip_vs_nope\)/)
    t.equal((await ipvs.listRealServers(web)).find(({ ip }) => ip === two.ip)?.weight, 0)
  })

  await t.test('a server is changed in place, and deleted with its real servers', async (t) => {
    const changed = { ...web, scheduler: 'wrr', persistenceSeconds: 60 }
    t.strictSame(await ipvs.change([{ do: 'set-server', server: changed }]), [])
    t.match(
      (await ipvs.listServers('IPv4')).find(({ ip }) => ip === web.ip),
      {
        scheduler: 'wrr',
        persistenceSeconds: 60,
      },
    )
    t.equal((await ipvs.listRealServers(web)).length, 2)
    const removals = [web, dns, sctp].map((each) => ({
      do: 'delete-server' as const,
      server: each,
    }))
    t.strictSame(await ipvs.change(removals), [])
    t.strictSame(await ipvs.listRealServers(web), [])
  })

  await t.test('a dummy device is made once and takes addresses of both families', async (t) => {
    t.equal(links.find('kube-test0'), undefined)
    const index = links.ensureDummy('kube-test0')
    t.equal(links.ensureDummy('kube-test0'), index)
    t.strictSame(await links.addAddresses('IPv4', index, ['10.96.0.1', '10.96.0.2']), [])
    t.strictSame(await links.addAddresses('IPv4', index, ['10.96.0.1']), [], 'twice is fine')
    t.strictSame(await links.addAddresses('IPv6', index, ['fd00:96::1']), [])
    t.strictSame((await links.addresses('IPv4', { on: index })).sort(), ['10.96.0.1', '10.96.0.2'])
    t.strictSame(await links.addresses('IPv6', { on: index }), ['fd00:96::1'])
    t.ok((await links.addresses('IPv4')).includes('10.96.0.1'), 'all devices are looked at')
    t.strictSame(await links.deleteAddresses('IPv4', index, ['10.96.0.2', '10.96.0.9']), [])
    t.strictSame(await links.addresses('IPv4', { on: index }), ['10.96.0.1'])
    t.equal(links.remove('kube-test0'), true)
    t.equal(links.remove('kube-test0'), false)
  })
}
