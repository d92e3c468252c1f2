import { interest } from '../../lib/kernel/sockets/epoll.js'
import { errno } from '../../lib/kernel/sockets/errno.js'
import { addressFamilies } from '../../lib/kernel/addresses.js'
import type { Load } from './load-client.js'
import { ports } from './services.js'
import { edgeTriggered } from './raw-loop.js'

/** N streams at full speed, to the server; from the server if the port is `ports.source`. */
export function bulk({ loop, target, seconds, n }: Load): object {
  const { sockets, buffer } = loop
  const isDownload = new DataView(target.buffer).getUint16(2) === ports.source
  const startedAt = performance.now()
  const deadline = startedAt + seconds * 1000
  let bytes = 0
  for (let index = 0; index < n; index++) {
    const fd = sockets.open(addressFamilies.IPv4, 'stream')
    sockets.connect(fd, target)
    const move = () =>
      isDownload ? loop.discard(fd) : sockets.send(fd, buffer.address, buffer.bytes.length)
    loop.add(fd, edgeTriggered, (events) => {
      if ((events & interest.error) !== 0) throw new Error('a bulk stream broke')
      for (let count = move(); performance.now() < deadline; count = move()) {
        if (count === -errno.EAGAIN) break
        if (count <= 0) throw new Error(`a bulk stream ended: ${count}`)
        bytes += count
      }
    })
  }
  while (performance.now() < deadline) loop.turn(100)
  return { gigabitsPerSecond: (bytes * 8) / seconds / 1e9 }
}
