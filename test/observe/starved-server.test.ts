/** A server that cannot accept does not spin, and goes on when it can. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { connect } from 'node:net'
import { createInterface } from 'node:readline'
import t from 'tap'

const script = new URL('./starved-server.js', import.meta.url).pathname

interface News {
  readonly port?: number
  readonly isStarved?: boolean
  readonly busyShare?: number
}

t.test('a health server without free descriptors waits and answers later', async (t) => {
  const child = spawn('prlimit', ['--nofile=64:64', process.execPath, script], {
    env: { PATH: process.env['PATH'] ?? '' },
  })
  t.teardown(() => void child.kill('SIGKILL'))
  let complaints = ''
  child.stderr.on('data', (chunk) => (complaints += String(chunk)))
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  const news = async (): Promise<News> => {
    const { value, done } = (await lines.next()) as { value?: string; done?: boolean }
    if (done === true || value === undefined) throw new Error(`it ended: ${complaints}`)
    return JSON.parse(value) as News
  }
  const { port = 0 } = await news()
  child.stdin.write('go\n')
  t.match(await news(), { isStarved: true })
  const crowd = Array.from({ length: 20 }, () => {
    const socket = connect({ host: '127.0.0.1', port })
    socket.on('error', () => undefined)
    return socket
  })
  const { busyShare = 1 } = await news()
  // A busy loop would take a whole core, or less on a busy machine.
  t.ok(
    busyShare < 0.3,
    `${(100 * busyShare).toFixed(1)} % of a core while nothing could be accepted`,
  )
  for (const socket of crowd) socket.destroy()
  const late = connect({ host: '127.0.0.1', port })
  t.teardown(() => void late.destroy())
  late.write('GET / HTTP/1.1\r\nHost: node\r\n\r\n')
  const [answer] = (await once(late, 'data')) as [Buffer]
  t.match(String(answer), /200 OK/)
  t.equal(child.exitCode, null)
})
