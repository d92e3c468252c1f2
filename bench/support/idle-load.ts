import { once } from 'node:events'
import { addressFamilies } from '../../lib/kernel/addresses.js'
import type { Load } from './load-client.js'
import { requestBytes } from './services.js'

/** Opens N connections, uses each once, and holds them until its standard input ends. */
export async function idle({ loop, target, n }: Load): Promise<object> {
  const { sockets, buffer } = loop
  let answered = 0
  for (let index = 0; index < n; index++) {
    const fd = sockets.open(addressFamilies.IPv4, 'stream')
    if (fd < 0) break
    sockets.connect(fd, target)
    let hasAsked = false
    loop.add(fd, (0x5 | 0x80000000) >>> 0, () => {
      if (!hasAsked) {
        hasAsked = true
        sockets.send(fd, buffer.address, requestBytes)
      } else if (sockets.receive(fd, buffer.address, 4096) > 0) answered++
    })
    if (index % 64 === 0) loop.turn(1)
  }
  const deadline = performance.now() + 10_000
  while (answered < n && performance.now() < deadline) loop.turn(100)
  process.stdout.write(`${JSON.stringify({ answered })}\n`)
  process.stdin.resume()
  await once(process.stdin, 'end')
  return { answered }
}
