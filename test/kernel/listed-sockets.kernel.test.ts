import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { rmSync, writeFileSync } from 'node:fs'
import t from 'tap'
import {
  inNamespacesOf,
  mayEnterNamespaces,
  networkCookie,
} from '../../lib/kernel/network-namespaces.js'
import { destroysSockets, ListedSockets } from '../../lib/kernel/listed-sockets.js'
import { createNetns, netnsSkip } from '../support/netns.js'

const skip = netnsSkip || (destroysSockets() ? false : 'this kernel does not destroy sockets')

async function connected(host: string, port: number) {
  const socket = createSocket(host.includes(':') ? 'udp6' : 'udp4')
  socket.connect(port, host)
  await once(socket, 'connect')
  return socket
}

t.test(
  'a UDP socket is listed with its peer, and ends when it is destroyed',
  { skip },
  async (t) => {
    const sockets = new ListedSockets('UDP')
    t.teardown(() => sockets.close())
    for (const [family, host, peer] of [
      ['IPv4', '127.0.0.1', '7f000001'],
      ['IPv6', '::1', '00000000000000000000000000000001'],
    ] as const) {
      const [wanted, other] = [await connected(host, 9), await connected(host, 7)]
      const port = wanted.address().port
      const all = await sockets.list(family)
      const found = all.find(({ id, peerPort }) => id.readUInt16BE(0) === port && peerPort === 9)
      t.equal(found?.peer.toString('hex'), peer)
      if (!found) return
      const failed = once(wanted, 'error')
      t.equal(sockets.destroy(found), true)
      t.match(await failed, [{ code: 'ECONNABORTED' }])
      t.equal(sockets.destroy(found), false, 'it is gone')
      t.doesNotThrow(() => other.send('still open'))
      wanted.close()
      other.close()
    }
  },
)

t.test('work is done inside of other network namespaces, and only there', { skip }, async (t) => {
  const netns = createNetns('inside')
  t.teardown(() => netns.remove())
  const cookieOf = JSON.stringify(
    new URL('../../lib/kernel/network-namespaces.js', import.meta.url),
  )
  const code = `import(${cookieOf}).then((m) => console.log(String(m.networkCookie())))`
  const inside = BigInt(netns.exec(process.execPath, '-e', code).trim())
  const here = networkCookie()
  t.not(inside, here)
  // A namespace that is mounted only for others, or was left by a crash, is an empty file here.
  const empty = `/run/netns/no-namespace-${process.pid}`
  writeFileSync(empty, '')
  t.teardown(() => rmSync(empty))
  const seen = inNamespacesOf(new Set([inside, here, 2n ** 60n]), networkCookie)
  t.same(
    [...seen].sort(),
    [
      [here, here],
      [inside, inside],
    ].sort(),
    'one that is nowhere is left out',
  )
  t.equal(networkCookie(), here, 'this process is where it was')
  t.equal(mayEnterNamespaces(), true)
})
