/** Listeners of each kind in a process without descriptors, while clients connect. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { connect, createServer, type AddressInfo } from 'node:net'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { freePort } from '../support/free-port.js'
import { patienceMs, until } from '../support/until.js'

const host = '127.0.0.1'
const script = new URL('./starved-listener.js', import.meta.url).pathname
/**
 * How many clients connect. Node frees a descriptor now and then to refuse some; the others wait.
 */
const clients = 60

/** The answer of a listener that works. */
const answers = {
  net: 'served',
  splice: 'served',
  'node port claim': 'ECONNRESET',
  'localhost node port': 'served',
  health: 'HTTP/1.1 200 OK',
  'service health': 'HTTP/1.1 200 OK',
}

/** Connects and returns the first words of the answer, or how the connection ended. */
function ask(port: number, withinMs = 1000): Promise<string> {
  return new Promise((resolve) => {
    const socket = connect({ host, port })
    socket.setTimeout(withinMs, () => resolve('nothing'))
    socket.on('data', (chunk) => resolve(String(chunk)))
    socket.on('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? 'error'))
    socket.on('close', () => {
      socket.destroy()
      resolve('end')
    })
    socket.write('GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n')
  })
}

async function portOf(server: ReturnType<typeof createServer>): Promise<number> {
  await once(server.listen(0, host), 'listening')
  return (server.address() as AddressInfo).port
}

function start(t: Test, args: readonly string[]) {
  const child = spawn('prlimit', ['--nofile=100:100', process.execPath, script, ...args], {
    env: { PATH: process.env['PATH'] ?? '' },
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  t.teardown(() => child.kill('SIGKILL'))
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  const next = async (): Promise<unknown> => {
    const line = await Promise.race([lines.next(), sleep(patienceMs, undefined, { ref: false })])
    return line?.done === false ? JSON.parse(line.value) : 'silence'
  }
  const tell = (command: string) => {
    child.stdin.write(`${command}\n`)
    return next()
  }
  return { next, tell }
}

for (const [kind, answer] of Object.entries(answers)) {
  t.test(`${kind}: works again when there are descriptors again`, async (t) => {
    const endpoint = createServer((socket) => {
      socket.on('error', () => undefined)
      socket.end('served')
    })
    const port = await freePort()
    const { next, tell } = start(t, [kind, String(port), String(await portOf(endpoint))])
    t.teardown(() => endpoint.close())
    t.match(await next(), { listens: true })
    t.match(await ask(port, patienceMs), answer, 'it works at first')
    t.match(await tell('starve'), { starved: true })
    const crowd = Array.from({ length: clients }, async (_, index) => {
      await sleep(index * 10)
      return ask(port)
    })
    await sleep(clients * 10)
    const measured = await tell('measure')
    t.match(measured, { busy: Number })
    const busy = (measured as { readonly busy?: number }).busy ?? 1
    // Only `splice` must be quiet. Node's own servers try again and again, and need free
    // descriptors.
    if (kind === 'splice')
      t.ok(busy < 0.3, `${Math.round(busy * 100)} % of a processor while clients wait`)
    await Promise.all(crowd)
    t.match(await tell('feed'), { fed: true })
    await until('it works again', async () => (await ask(port)).startsWith(answer), 250)
    t.pass('it works again')
  })
}
