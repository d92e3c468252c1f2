import { interest } from '../../lib/kernel/sockets/epoll.js'
import { addressFamilies } from '../../lib/kernel/addresses.js'
import type { Load } from './load-client.js'
import { requestBytes } from './services.js'
import { summarize } from './summary.js'

/** N connections that each wait for the echo of one small message before they send the next. */
export function pingPong({ loop, target, seconds, n }: Load): object {
  const { sockets, buffer } = loop
  const times: number[] = []
  let connected = 0
  const sentAt = new Float64Array(n)
  const send = (index: number, fd: number) => {
    sentAt[index] = performance.now()
    sockets.send(fd, buffer.address, requestBytes)
  }
  let isOver = false
  for (let index = 0; index < n; index++) {
    const fd = sockets.open(addressFamilies.IPv4, 'stream')
    sockets.connect(fd, target)
    loop.add(
      fd,
      (interest.readable | interest.writable | interest.edgeTriggered) >>> 0,
      (events) => {
        if ((events & interest.readable) === 0) {
          connected++
          sockets.noDelay(fd)
          send(index, fd)
          return
        }
        const count = sockets.receive(fd, buffer.address, 4096)
        if (count < 0 || isOver) return
        if (count === 0) throw new Error('the proxy closed a ping-pong connection')
        times.push(performance.now() - (sentAt[index] ?? 0))
        send(index, fd)
      },
    )
  }
  while (connected < n) loop.turn(1000)
  times.length = 0
  const startedAt = performance.now()
  while (performance.now() < startedAt + seconds * 1000) loop.turn(100)
  isOver = true
  return { perSecond: times.length / seconds, ...summarize(times) }
}
