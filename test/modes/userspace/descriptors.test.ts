/** A process with too few descriptors: established connections go on, and nothing crashes. */
import { once } from 'node:events'
import { spawn } from 'node:child_process'
import { connect, createServer, type Socket } from 'node:net'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { untilThere } from '../../support/until.js'

const host = '127.0.0.1'
const clientsPerListener = 30
const script = new URL('./small-proxy.js', import.meta.url).pathname

interface News {
  readonly ports?: readonly number[]
  readonly left?: number
  readonly shortages?: number
  readonly warning?: string
  readonly lost?: string
}

for (const dataPath of ['net', 'splice']) {
  t.test(`US36: data path ${dataPath} with 128 descriptors lets new clients wait`, async (t) => {
    const port = await openEcho(t)
    const { proxy, news, complaints } = startProxy(t, dataPath, { port, limits: '128:128' })
    const listeners = await until(() => news.find(({ ports }) => ports)?.ports)

    const clients = listeners.flatMap((to) =>
      Array.from({ length: clientsPerListener }, () => new Client(to)),
    )
    const shortages = () => news.reduce((sum, { shortages = 0 }) => sum + shortages, 0)
    await until(() => shortages() > 0)
    await settled(() => clients.filter(({ isServed, isOver }) => isServed || isOver).length)
    const served = clients.filter(({ isServed }) => isServed)
    const waiting = clients.filter(({ isServed, isOver }) => !isServed && !isOver)
    t.ok(served.length >= 20, `${served.length} served at once`)
    t.ok(waiting.length > 0, `${waiting.length} wait, the rest was refused`)
    if (dataPath === 'splice') t.equal(served.length + waiting.length, clients.length)
    t.ok(news.some(({ warning }) => /descriptors|EMFILE/.test(warning ?? '')))
    t.ok(shortages() > 0, 'counted')

    for (const client of served) client.say('again')
    await until(() => served.every(({ heard }) => heard === 'helloagain'))
    t.pass('every established connection goes on')
    for (const client of served) client.socket.destroy()
    await until(() => {
      // Clients that were served end, so that the next ones get descriptors.
      for (const { isServed, socket } of waiting) if (isServed) socket.destroy()
      return waiting.every(({ isServed }) => isServed)
    })
    t.pass('and who waited is served')
    const late = new Client(listeners[0] ?? 0)
    await until(() => late.isServed)
    t.equal(proxy.exitCode, null)
    t.notOk(news.some(({ lost }) => lost))
    t.equal(complaints(), '')
    late.socket.destroy()
  })
}

for (const dataPath of ['net', 'splice']) {
  t.test(`${dataPath}: a crowd at one Service leaves descriptors for the others`, async (t) => {
    const endpoint = await openEcho(t)
    const { news } = startProxy(t, dataPath, { port: endpoint, limits: '256:256' })
    const [first = 0, ...others] = await until(() => news.find(({ ports }) => ports)?.ports)
    const crowd = Array.from({ length: 150 }, () => new Client(first))
    await settled(() => crowd.filter(({ isServed, isOver }) => isServed || isOver).length)
    const served = crowd.filter(({ isServed }) => isServed)
    t.ok(served.length > 30, `${served.length} of the crowd are served`)
    t.ok(served.length < crowd.length, 'not all')
    for (const port of others) {
      const client = new Client(port)
      await until(() => client.isServed)
      client.socket.destroy()
    }
    t.pass('clients of all other Services are')
    for (const { socket } of crowd) socket.destroy()
  })
}

t.test('US35: the process raises its limit of descriptors up to the hard limit', async (t) => {
  const { news, proxy } = startProxy(t, 'net', { port: 9, limits: '100:700' })
  await until(() => news.find(({ ports }) => ports)?.ports)
  t.equal(
    news.find(({ left }) => left !== undefined)?.left,
    700 - 128 - 4,
    'but for a reserve and four listeners',
  )
  t.equal(proxy.exitCode, null)
})

/** Starts an endpoint that sends back what it gets, and returns its port. */
async function openEcho(t: Test): Promise<number> {
  const endpoint = createServer((socket) => {
    socket.on('error', () => undefined)
    socket.pipe(socket)
  }).listen(0, host)
  await once(endpoint, 'listening')
  t.teardown(() => void endpoint.close())
  const address = endpoint.address()
  return typeof address === 'object' && address ? address.port : 0
}

/** Starts the proxy with these soft and hard limits of descriptors. */
function startProxy(
  t: Test,
  dataPath: string,
  { port, limits }: { readonly port: number; readonly limits: string },
) {
  // The environment is empty, because the test runner loads code into processes that opens files.
  const proxy = spawn('env', [
    ...['-i', `PATH=${process.env['PATH'] ?? ''}`, 'prlimit', `--nofile=${limits}`],
    ...[process.execPath, script, dataPath, String(port)],
  ])
  const news: News[] = []
  let complaints = ''
  proxy.stderr.on('data', (chunk) => (complaints += String(chunk)))
  createInterface({ input: proxy.stdout }).on('line', (line) => {
    news.push(JSON.parse(line) as News)
  })
  t.teardown(() => void proxy.kill())
  return { proxy, news, complaints: () => complaints }
}

class Client {
  readonly socket: Socket
  heard = ''
  isOver = false

  constructor(port: number) {
    this.socket = connect({ host, port })
    this.socket.on('data', (chunk) => (this.heard += String(chunk)))
    this.socket.on('error', () => undefined)
    this.socket.on('close', () => (this.isOver = true))
    this.say('hello')
  }

  get isServed(): boolean {
    return this.heard.startsWith('hello')
  }

  say(text: string): void {
    this.socket.write(text)
  }
}

const until = <T>(ask: () => T) => untilThere(() => String(ask), ask)

/** Waits until a count has not changed for a second. */
async function settled(count: () => number): Promise<void> {
  let last = count()
  for (let still = 0; still < 20; still++) {
    await sleep(50)
    if (count() !== last) still = -1
    last = count()
  }
}
