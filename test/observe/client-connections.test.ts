/** Clients that keep connections open are limited in number and time, and new ones are served. */
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { connect, type Socket } from 'node:net'
import t, { type Test } from 'tap'
import { ClientConnections } from '../../lib/observe/client-connections.js'
import { until } from '../support/until.js'
import { close, listen, portOf, text, type HttpHandler } from '../../lib/observe/http.js'

const bound = 8
const notLinux = process.platform !== 'linux' && 'the timers of sockets are those of Linux'
const patient = 600_000

async function serving(t: Test, options: { idleMs?: number; handler?: HttpHandler } = {}) {
  const clients = new ClientConnections(bound)
  const { idleMs = patient, handler = () => text('ok') } = options
  const server = await listen({ host: '127.0.0.1', port: 0, handler, clients, idleMs })
  t.teardown(() => close(server))
  return { server, port: portOf(server), clients }
}

/** Connects a client from this address. */
async function arrive(t: Test, port: number, from = '127.0.0.1'): Promise<Client> {
  const client = new Client(connect({ port, host: '127.0.0.1', localAddress: from }))
  t.teardown(() => void client.socket.destroy())
  await once(client.socket, 'connect')
  return client
}

class Client {
  readonly socket: Socket
  heard = ''
  readonly ended: Promise<void>
  isOver = false

  constructor(socket: Socket) {
    this.socket = socket
    socket.on('data', (data) => (this.heard += String(data)))
    socket.on('error', () => undefined)
    this.ended = new Promise((resolve) => {
      socket.once('close', () => {
        this.isOver = true
        resolve()
      })
    })
  }

  async ask(): Promise<string> {
    this.socket.write('GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n')
    await Promise.race([once(this.socket, 'data'), this.ended])
    return this.heard
  }
}

t.test('a full server drops the oldest idle connection, and answers new clients', async (t) => {
  const { port, clients } = await serving(t)
  const crowd: Client[] = []
  for (let count = 0; count < 5 * bound; count++) {
    crowd.push(await arrive(t, port))
    if (count % bound === 0) t.match(await (await arrive(t, port)).ask(), /200 OK/)
  }
  await crowd[0]?.ended
  t.ok(clients.size <= bound, `${clients.size} of at most ${bound} are held`)
  t.match(await (await arrive(t, port)).ask(), /200 OK/)
  t.notOk(crowd.at(-1)?.isOver, 'the newest are there still')
})

t.test('many connections from one address only replace each other', async (t) => {
  const { port } = await serving(t)
  const kubelet = await arrive(t, port, '127.0.0.2')
  const crowd: Client[] = []
  for (let count = 0; count < 5 * bound; count++) crowd.push(await arrive(t, port, '127.0.0.3'))
  await crowd[0]?.ended
  t.match(await kubelet.ask(), /200 OK/, 'although it was the first to come')
})

/** `timer_active` of https://docs.kernel.org/networking/proc_net_tcp.html */
const keepAliveTimer = '02'
const established = '01'

t.test('a client whose machine is gone is noticed', { skip: notLinux }, async (t) => {
  const { port } = await serving(t)
  await arrive(t, port)
  const local = `:${port.toString(16).toUpperCase().padStart(4, '0')}`
  const isAsked = () =>
    readFileSync('/proc/net/tcp', 'latin1')
      .split('\n')
      .map((line) => line.trim().split(/\s+/))
      .some(([, from, , state, , timer]) => {
        const isOurs = from?.endsWith(local) === true && state === established
        return isOurs && timer?.startsWith(keepAliveTimer) === true
      })
  // The kernel looks through its whole table of sockets for each reader.
  await until('the kernel asks whether the client is there', isAsked, 1000)
  t.pass()
})

t.test('a client that waits for its answer is dropped last', async (t) => {
  let answer: () => void = () => undefined
  let asked: () => void = () => undefined
  const isAsked = new Promise<void>((resolve) => (asked = resolve))
  const { port } = await serving(t, {
    handler: async () => {
      await new Promise<void>((resolve) => {
        answer = resolve
        asked()
      })
      return text('slow')
    },
  })
  const scrape = await arrive(t, port)
  const answered = scrape.ask()
  await isAsked
  const crowd: Client[] = []
  for (let count = 0; count < 2 * bound; count++) crowd.push(await arrive(t, port))
  await crowd[0]?.ended
  answer()
  t.match(await answered, /slow/)
})

t.test('a client that does not wait for its answer is disconnected', async (t) => {
  let asked = 0
  const { port } = await serving(t, { handler: () => text(String(asked++)) })
  const client = await arrive(t, port)
  client.socket.write('GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n'.repeat(1000))
  await client.ended
  t.equal(asked, 1, 'the others take no time from syncs')
})

for (const [what, header] of [
  ['requests', ''],
  ['expectations', 'Expect: much\r\n'],
]) {
  t.test(`of a packet full of ${what} only the first two are parsed`, async (t) => {
    const { server, port } = await serving(t, {})
    let parsed = 0
    for (const event of ['request', 'checkExpectation']) server.on(event, () => parsed++)
    const client = await arrive(t, port)
    client.socket.write(`GET /healthz HTTP/1.1\r\nHost: node\r\n${header}\r\n`.repeat(1000))
    await client.ended
    t.equal(parsed, 2)
  })
}

const lingerers = {
  'says nothing': '',
  'sends half a request line': 'GET /hea',
  'sends half a head': 'GET /healthz HTTP/1.1\r\nHost: no',
  'sends half a body': 'PUT /x HTTP/1.1\r\nHost: node\r\nContent-Length: 10\r\n\r\nhalf',
  'asks once and stays': 'GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n',
}
for (const [what, words] of Object.entries(lingerers)) {
  t.test(`a client that ${what} is disconnected`, async (t) => {
    const { port, clients } = await serving(t, { idleMs: 100 })
    const client = await arrive(t, port)
    client.socket.write(words)
    await client.ended
    // The server learns of the end a moment before or after the client.
    while (clients.size > 0) await new Promise(setImmediate)
    t.equal(clients.size, 0)
  })
}
