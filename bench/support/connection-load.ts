import { interest } from '../../lib/kernel/sockets/epoll.js'
import { errno } from '../../lib/kernel/sockets/errno.js'
import { addressFamilies } from '../../lib/kernel/addresses.js'
import type { Load } from './load-client.js'
import { edgeTriggered } from './raw-loop.js'
import { requestBytes } from './services.js'
import { summarize } from './summary.js'

/** One whole short connection: connect, ask, read the answer, see the end, close. */
export function exchange(
  { loop, target }: Load,
  ended: (milliseconds: number, ok: boolean) => void,
): void {
  const { sockets, buffer } = loop
  const startedAt = performance.now()
  const fd = sockets.open(addressFamilies.IPv4, 'stream')
  let received = 0
  let hasAsked = false
  const end = (ok: boolean) => {
    loop.close(fd)
    ended(performance.now() - startedAt, ok)
  }
  if (sockets.connect(fd, target) !== -errno.EINPROGRESS) {
    end(false)
    return
  }
  loop.add(fd, edgeTriggered, (events) => {
    if (!hasAsked && (events & interest.writable) !== 0) {
      hasAsked = true
      if (sockets.send(fd, buffer.address, requestBytes) < 0) {
        end(false)
        return
      }
    }
    if ((events & interest.readable) === 0) return
    const count = sockets.receive(fd, buffer.address, 4096)
    if (count > 0) {
      received += count
      if ((events & interest.peerFinished) !== 0) end(true)
    } else if (count !== -errno.EAGAIN) end(count === 0 && received > 0)
  })
}

/** N connections at a time. When one ends, the next begins. */
export function connections(load: Load): object {
  const times: number[] = []
  let failed = 0
  const startedAt = performance.now()
  const deadline = startedAt + load.seconds * 1000
  let open = 0
  const next = () => {
    open++
    exchange(load, (milliseconds, ok) => {
      open--
      if (ok) times.push(milliseconds)
      else failed++
      if (performance.now() < deadline) next()
    })
  }
  for (let index = 0; index < load.n; index++) next()
  while (open > 0 && performance.now() < deadline + 1000) load.loop.turn(100)
  const perSecond = times.length / load.seconds
  return { perSecond, failed: failed + open, ...summarize(times) }
}

/** Begins N connections a second, also while others are slow: users do not wait for each other. */
export function connectionsAtRate(load: Load): object {
  const times: number[] = []
  let failed = 0
  let open = 0
  let started = 0
  const startedAt = performance.now()
  const total = load.n * load.seconds
  while (started < total || open > 0) {
    const elapsed = performance.now() - startedAt
    if (elapsed > load.seconds * 1000 + 5000) break
    for (const due = Math.min(total, (elapsed * load.n) / 1000); started < due; started++) {
      open++
      exchange(load, (milliseconds, ok) => {
        open--
        if (ok) times.push(milliseconds)
        else failed++
      })
    }
    load.loop.turn(1)
  }
  return { perSecond: times.length / load.seconds, failed: failed + open, ...summarize(times) }
}
