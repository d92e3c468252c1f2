import { interest } from '../../lib/kernel/sockets/epoll.js'
import { addressFamilies } from '../../lib/kernel/addresses.js'
import type { Load } from './load-client.js'
import { requestBytes } from './services.js'
import { summarize } from './summary.js'

/** A client asks again after this time. An answer that comes later counts as late, not lost. */
const patienceMs = 200

/** N clients that each wait for the echo of one numbered datagram. */
export function datagrams({ loop, target, seconds, n }: Load): object {
  const { sockets, buffer } = loop
  const times: number[] = []
  const fds: number[] = []
  const sentAt = new Float64Array(n)
  const numbers = new Uint32Array(n)
  let sent = 0
  let late = 0
  const send = (index: number) => {
    sentAt[index] = performance.now()
    const number = (numbers[index] ?? 0) + 1
    numbers[index] = number
    buffer.view.setUint32(0, number)
    if (sockets.send(fds[index] ?? -1, buffer.address, requestBytes) > 0) sent++
  }
  let isOver = false
  for (let index = 0; index < n; index++) {
    const fd = sockets.open(addressFamilies.IPv4, 'datagram')
    fds.push(fd)
    sockets.connect(fd, target)
    loop.add(fd, interest.readable, () => {
      if (sockets.receive(fd, buffer.address, 4096) <= 0) return
      if (buffer.view.getUint32(0) !== numbers[index]) {
        late++
        return
      }
      times.push(performance.now() - (sentAt[index] ?? 0))
      if (!isOver) send(index)
    })
  }
  for (let index = 0; index < n; index++) send(index)
  const startedAt = performance.now()
  let checkedAt = startedAt
  while (performance.now() < startedAt + seconds * 1000) {
    loop.turn(50)
    const now = performance.now()
    if (now - checkedAt < patienceMs) continue
    checkedAt = now
    for (let index = 0; index < n; index++) {
      if (now - (sentAt[index] ?? 0) >= patienceMs) send(index)
    }
  }
  isOver = true
  const stragglersUntil = performance.now() + 2 * patienceMs
  while (performance.now() < stragglersUntil) loop.turn(50)
  const lost = sent - times.length - late
  return { perSecond: times.length / seconds, sent, late, lost, ...summarize(times) }
}
