/** The far end of every load: one thread, all services. Usage: load-server.js ADDRESS */
import { interest } from '../../lib/kernel/sockets/epoll.js'
import { DatagramBatch } from '../../lib/kernel/sockets/datagrams.js'
import { edgeTriggered, RawLoop } from './raw-loop.js'
import { ports, responseBytes } from './services.js'

const ip = process.argv[2] ?? '127.0.0.1'
const loop = await RawLoop.load()
const { sockets, buffer } = loop

function serve(port: number, accepted: (fd: number) => void): void {
  const listener = sockets.listen({ ip, port, kind: 'stream', backlog: 4096 })
  sockets.noDelay(listener)
  loop.add(listener, interest.readable, () => {
    for (let fd = sockets.accept(listener); fd >= 0; fd = sockets.accept(listener)) accepted(fd)
  })
}

/** Answers one request and closes. */
for (const port of ports.short) {
  serve(port, (fd) => {
    loop.add(fd, (interest.readable | interest.edgeTriggered) >>> 0, () => {
      if (sockets.receive(fd, buffer.address, 4096) > 0) {
        sockets.send(fd, buffer.address, responseBytes)
      }
      loop.close(fd)
    })
  })
}

/** Sends back whatever comes. */
for (const port of [ports.echo, ports.echo2]) {
  serve(port, (fd) => {
    loop.add(fd, (interest.readable | interest.edgeTriggered) >>> 0, () => {
      const count = sockets.receive(fd, buffer.address, buffer.bytes.length)
      if (count > 0) sockets.send(fd, buffer.address, count)
      else if (count === 0) loop.close(fd)
    })
  })
}

/** Takes everything. */
serve(ports.sink, (fd) => {
  loop.add(fd, interest.readable, () => {
    if (loop.discard(fd) === 0) loop.close(fd)
  })
})

/** Sends as much as is taken. */
serve(ports.source, (fd) => {
  loop.add(fd, edgeTriggered, (events) => {
    if ((events & (interest.peerFinished | interest.hangup | interest.error)) !== 0) {
      loop.close(fd)
      return
    }
    while (sockets.send(fd, buffer.address, buffer.bytes.length) > 0);
  })
})

for (const port of [ports.udp, ports.udp2]) {
  const udp = sockets.listen({ ip, port, kind: 'datagram' })
  sockets.bufferSizes(udp, 1 << 20)
  const batch = new DatagramBatch(loop.libc, 64)
  loop.add(udp, interest.readable, () => {
    const count = batch.receive(udp, 0, 64)
    for (let index = 0; index < count; index++) {
      const offset = batch.nameOffset(index)
      batch.prepare(index, batch.length(index), batch.names.bytes.subarray(offset, offset + 16))
    }
    if (count > 0) batch.send(udp, 0, count)
  })
}

process.stdout.write('ready\n')
for (;;) loop.turn(1000)
