import { interest } from '../../lib/kernel/sockets/epoll.js'
import { addressFamily } from '../../lib/kernel/sockets/socket-address.js'
import type { Load } from './load-client.js'
import { requestBytes } from './services.js'
import { summarize } from './summary.js'

/** N clients that each wait for the echo of one datagram; a lost one is sent again after a while. */
export function datagrams({ loop, target, seconds, n }: Load): object {
  const { sockets, buffer } = loop
  const times: number[] = []
  const fds: number[] = []
  const sentAt = new Float64Array(n)
  let lost = 0
  const send = (index: number) => {
    sentAt[index] = performance.now()
    sockets.send(fds[index] ?? -1, buffer.address, requestBytes)
  }
  for (let index = 0; index < n; index++) {
    const fd = sockets.open(addressFamily.IPv4, 'datagram')
    fds.push(fd)
    sockets.connect(fd, target)
    loop.add(fd, interest.readable, () => {
      if (sockets.receive(fd, buffer.address, 4096) <= 0) return
      times.push(performance.now() - (sentAt[index] ?? 0))
      send(index)
    })
  }
  for (let index = 0; index < n; index++) send(index)
  const startedAt = performance.now()
  let checkedAt = startedAt
  while (performance.now() < startedAt + seconds * 1000) {
    loop.turn(50)
    const now = performance.now()
    if (now - checkedAt < 200) continue
    checkedAt = now
    for (let index = 0; index < n; index++) {
      if (now - (sentAt[index] ?? 0) < 200) continue
      lost++
      send(index)
    }
  }
  return { perSecond: times.length / seconds, lost, ...summarize(times) }
}
