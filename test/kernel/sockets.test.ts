import { once } from 'node:events'
import { closeSync, mkdtempSync, openSync, readdirSync, rmSync } from 'node:fs'
import { connect, createServer, type AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import fc from 'fast-check'
import t from 'tap'
import { DatagramBatch, maxDatagram } from '../../lib/kernel/sockets/datagrams.js'
import { Epoll, interest } from '../../lib/kernel/sockets/epoll.js'
import { errno, errnoName, SystemCallError } from '../../lib/kernel/sockets/errno.js'
import { loadLibc, allocateNative } from '../../lib/kernel/sockets/libc.js'
import { PacketServer, PacketSocket } from '../../lib/kernel/sockets/packet-socket.js'
import { Pipes } from '../../lib/kernel/sockets/pipe.js'
import { reset } from '../../lib/kernel/sockets/reset.js'
import {
  addressKey,
  decodeAddress,
  encodeAddress,
} from '../../lib/kernel/sockets/socket-address.js'
import { addressFamilies } from '../../lib/kernel/addresses.js'
import { Sockets } from '../../lib/kernel/sockets/sockets.js'
import { formatIp } from '../../lib/state/ip.js'

const ip = '127.0.0.1'
const port = fc.integer({ min: 0, max: 65535 })
const ips = fc.oneof(
  fc.bigInt({ min: 0n, max: 2n ** 32n - 1n }).map((value) => formatIp('IPv4', value)),
  // Smaller numbers could be mapped IPv4 addresses, which need sockets of another family.
  fc.bigInt({ min: 1n << 100n, max: 2n ** 128n - 1n }).map((value) => formatIp('IPv6', value)),
)

t.test('a socket address comes back from its bytes', async (t) => {
  fc.assert(
    fc.property(ips, port, (ip, port) => {
      const bytes = Buffer.alloc(40)
      const encoded = encodeAddress({ ip, port })
      bytes.set(encoded, 4)
      const view = new DataView(bytes.buffer, bytes.byteOffset)
      t.same(decodeAddress(view, 4), { ip, port })
      return encoded.length === (ip.includes(':') ? 28 : 16)
    }),
    { numRuns: 200 },
  )
  const view = new DataView(new ArrayBuffer(28))
  t.equal(decodeAddress(view, 0), undefined, 'another family is no address')
  t.throws(() => encodeAddress({ ip: 'localhost', port: 1 }), RangeError)
  t.throws(() => encodeAddress({ ip, port: 65536 }), RangeError)
})

t.test('a server of packets keeps no descriptors that come along', async (t) => {
  const libc = await loadLibc()
  // The path of a socket has 107 bytes at most.
  const folder = mkdtempSync(`${tmpdir()}/packets-`)
  t.teardown(() => rmSync(folder, { recursive: true }))
  const path = `${folder}/socket`
  const accepted: PacketSocket[] = []
  const server = new PacketServer(libc, path, (socket) => accepted.push(socket))
  t.teardown(() => server.close())
  // Sockets of this kind do not keep a process alive.
  const alive = setInterval(() => undefined, 1000)
  t.teardown(() => clearInterval(alive))
  const client = PacketSocket.connect(libc, path)
  const openNow = () => readdirSync('/proc/self/fd').length
  while (accepted.length === 0) await new Promise((resolve) => setTimeout(resolve, 5))
  const before = openNow()
  const passed = Array.from({ length: 20 }, () => openSync('/dev/null', 'r'))
  await client.send('rubbish', passed)
  // The server takes a text without bytes for the end.
  await client.send('', passed)
  t.same(await accepted[0]?.receive(), { text: 'rubbish', descriptors: [] })
  t.equal(await accepted[0]?.receive(), undefined)
  for (const fd of passed) closeSync(fd)
  t.equal(openNow(), before)
  client.close()
  accepted[0]?.close()
})

// libuv refuses this, and Node would keep the descriptor for ever.
t.test('a socket whose end is on its way is closed by a reset', async (t) => {
  const server = createServer((socket) => socket.resume()).listen(0, ip)
  await once(server, 'listening')
  t.teardown(() => server.close())
  const { port } = server.address() as AddressInfo
  const accepted = once(server, 'connection')
  const socket = connect({ host: ip, port, allowHalfOpen: true })
  await once(socket, 'connect')
  const [peer] = (await accepted) as [typeof socket]
  const errors: Error[] = []
  socket.on('error', (error) => errors.push(error))
  socket.end()
  reset(socket)
  await Promise.all([once(socket, 'close'), once(peer, 'close')])
  t.same(errors, [])
})

t.test('address keys are equal exactly when addresses are', async (t) => {
  const keyOf = (ip: string, port: number) => {
    const bytes = Buffer.alloc(28)
    bytes.set(encodeAddress({ ip, port }))
    return addressKey(bytes, 0)
  }
  fc.assert(
    fc.property(ips, port, ips, port, (ip, port, otherIp, otherPort) => {
      const isSame = ip === otherIp && port === otherPort
      return (keyOf(ip, port) === keyOf(otherIp, otherPort)) === isSame
    }),
  )
  t.not(keyOf('10.0.0.1', 80), keyOf('10.0.0.1', 81))
  t.equal(keyOf('fd00::1', 80), keyOf('fd00::1', 80))
})

t.test('errors have the names Node gives them', async (t) => {
  t.equal(errnoName(-errno.ECONNREFUSED), 'ECONNREFUSED')
  t.equal(errnoName(4242), 'errno 4242')
  const error = new SystemCallError('listen on ::1 port 80', -errno.EADDRINUSE)
  t.match(error, { code: 'EADDRINUSE', message: 'listen on ::1 port 80: EADDRINUSE' })
})

t.test('socket calls work with the C library of this machine', async (t) => {
  const libc = await loadLibc()
  const sockets = new Sockets(libc)
  const epoll = new Epoll(libc, 4)
  const memory = allocateNative(libc, 4096)
  t.teardown(() => epoll.close())

  /** Two connected sockets: one that connected, one accepted. */
  const pair = (at: string) => {
    const listener = sockets.listen({ ip: at, port: 0, kind: 'stream' })
    const bound = sockets.localAddress(listener)
    const family = at.includes(':') ? addressFamilies.IPv6 : addressFamilies.IPv4
    const near = sockets.open(family, 'stream')
    t.equal(sockets.connect(near, encodeAddress(bound)), -errno.EINPROGRESS)
    const far = sockets.accept(listener)
    const peer = sockets.peer()
    t.same(peer, sockets.localAddress(near), 'accept tells from where')
    sockets.close(listener)
    return { near, far }
  }

  for (const at of [ip, '::1']) {
    t.test(`a connection over ${at} has events, bytes, half-close and reset`, async (t) => {
      const { near, far } = pair(at)
      t.ok(far >= 0)
      t.equal(sockets.receive(far, memory.address, 10), -errno.EAGAIN)
      epoll.add(far, interest.readable | interest.peerFinished)
      t.equal(epoll.wait(0), 0)
      memory.bytes.write('hello')
      t.equal(sockets.send(near, memory.address, 5), 5)
      t.equal(epoll.wait(1000), 1)
      t.equal(epoll.fdAt(0), far)
      t.equal(epoll.eventsAt(0), interest.readable)
      memory.bytes.fill(0)
      t.equal(sockets.receive(far, memory.address, 10), 5)
      t.equal(memory.bytes.toString('latin1', 0, 5), 'hello')
      t.equal(sockets.finishSending(near), 0)
      t.equal(epoll.wait(1000), 1)
      t.ok(epoll.eventsAt(0) & interest.peerFinished)
      t.equal(sockets.receive(far, memory.address, 10), 0)
      t.equal(sockets.send(far, memory.address, 3), 3, 'the other direction goes on')
      t.equal(sockets.takeError(near), 0)
      sockets.resetOnClose(far)
      sockets.close(far)
      t.equal(sockets.takeError(near), -errno.ECONNRESET)
      sockets.close(near)
    })
  }

  t.test('a taken port is EADDRINUSE, and closes the socket again', async (t) => {
    const first = sockets.listen({ ip, port: 0, kind: 'stream' })
    const { port } = sockets.localAddress(first)
    const lowestFree = () => {
      const fd = sockets.open(addressFamilies.IPv4, 'stream')
      sockets.close(fd)
      return fd
    }
    const next = lowestFree()
    t.throws(() => sockets.listen({ ip, port, kind: 'stream' }), { code: 'EADDRINUSE' })
    t.equal(lowestFree(), next, 'the lowest free number is still the next one')
    sockets.close(first)
  })

  t.test('a pipe moves bytes between sockets', async (t) => {
    const pipes = new Pipes(libc)
    const pipe = pipes.open(1 << 16)
    if (!pipe) throw new Error('no pipe')
    const from = pair(ip)
    const to = pair(ip)
    t.equal(pipes.fill(pipe, from.far, 100), -errno.EAGAIN)
    memory.bytes.write('spliced')
    sockets.send(from.near, memory.address, 7)
    t.equal(pipes.fill(pipe, from.far, 100), 7)
    t.equal(pipes.empty(pipe, to.near, 7), 7)
    memory.bytes.fill(0)
    t.equal(sockets.receive(to.far, memory.address, 100), 7)
    t.equal(memory.bytes.toString('latin1', 0, 7), 'spliced')
    pipes.close(pipe)
    for (const fd of [from.near, from.far, to.near, to.far]) sockets.close(fd)
  })

  t.test('a batch of datagrams keeps order, sizes and senders', async (t) => {
    const far = sockets.listen({ ip, port: 0, kind: 'datagram' })
    const near = sockets.listen({ ip, port: 0, kind: 'datagram' })
    const batch = new DatagramBatch(libc, 4)
    const to = encodeAddress(sockets.localAddress(far))
    const sizes = [3, 0, 65_507]
    for (const [index, size] of sizes.entries()) batch.prepare(index, size, to)
    t.equal(batch.send(near, 0, 3), 3)
    const received = new DatagramBatch(libc, 4)
    t.equal(received.receive(far, 1, 3), 3, 'may be put behind others')
    t.same(
      [1, 2, 3].map((index) => received.length(index)),
      sizes,
    )
    const offset = received.nameOffset(3)
    t.same(decodeAddress(received.names.view, offset), sockets.localAddress(near))
    t.equal(received.receive(far, 0, 4), -errno.EAGAIN)
    t.ok(received.dataAddress(1) - received.dataAddress(0) >= maxDatagram)
    sockets.close(near)
    sockets.close(far)
  })
})
