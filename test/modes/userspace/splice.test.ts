/** Tests of only the `splice` data path; those of both data paths are in data-path.test.ts. */
import { spawn } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { mock } from 'node:test'
import { loadLibc, allocateNative } from '../../../lib/kernel/sockets/libc.js'
import { addressFamilies } from '../../../lib/kernel/addresses.js'
import { encodeAddress } from '../../../lib/kernel/sockets/socket-address.js'
import { Pipes } from '../../../lib/kernel/sockets/pipe.js'
import { Sockets } from '../../../lib/kernel/sockets/sockets.js'
import { DescriptorBudget } from '../../../lib/modes/userspace/datapath/descriptors.js'
import { PipePool } from '../../../lib/modes/userspace/datapath/splice/pipe-pool.js'
import { RecencyList, type Recent } from '../../../lib/modes/userspace/datapath/recency-list.js'
import { dataPathLoaders } from '../../../lib/modes/userspace/datapath/create-data-path.js'
import { TimeoutQueue } from '../../../lib/modes/userspace/datapath/timeout-queue.js'
import type { ListenerSpec } from '../../../lib/modes/userspace/datapath/data-path.js'
import { patienceMs } from '../../support/until.js'
import { blockFor } from '../../support/block.js'

const ip = '127.0.0.1'
const create = await dataPathLoaders.splice()

function open(endpointPort: number, limit = 1000, accessLog?: () => void) {
  const descriptors = new DescriptorBudget(DescriptorBudget.allocate(limit))
  const path = create({
    now: () => performance.now(),
    random: () => 0,
    descriptors,
    passiveHealth: true,
    accessLog,
    warn: () => undefined,
  })
  const spec: ListenerSpec = {
    key: 'test',
    service: 'default/test:p',
    protocol: 'TCP',
    address: ip,
    port: 0,
    endpoints: [{ key: `${ip}:${endpointPort}`, ip, port: endpointPort }],
    servingKeys: [],
    affinityMs: undefined,
    udpIdleMs: 250,
  }
  return { path, descriptors, port: path.open(spec) }
}

/** The hash of everything that a socket receives. A slow one stops reading now and then. */
async function digest(socket: Socket, isSlow: boolean): Promise<string> {
  const hash = createHash('sha1')
  let chunks = 0
  // A loop over the socket would destroy it at the end, together with bytes that still wait.
  socket.on('data', (chunk: Buffer) => {
    hash.update(chunk)
    if (!isSlow || ++chunks % 16 !== 0) return
    socket.pause()
    setTimeout(() => socket.resume(), 1)
  })
  await once(socket, 'end')
  return hash.digest('hex')
}

for (const { limit, slowness, way } of [
  { limit: 1000, slowness: [true, false], way: 'spliced' },
  { limit: 2, slowness: [true], way: 'copied, where no descriptor is left for a pipe' },
]) {
  t.test(`bulk data in both directions arrives complete: ${way}`, async (t) => {
    const up = randomBytes(24 << 20)
    const down = randomBytes(16 << 20)
    const sha1 = (data: Buffer) => createHash('sha1').update(data).digest('hex')
    const results: Promise<string>[] = []
    const server = createServer({ allowHalfOpen: true }, (socket) => {
      socket.end(down)
      results.push(digest(socket, results.length === 0))
    }).listen(0, ip)
    await once(server, 'listening')
    const address = server.address()
    const { path, descriptors, port } = open(
      typeof address === 'object' && address ? address.port : 0,
      limit,
    )
    for (const isSlow of slowness) {
      const client = connect({ host: ip, port: await port, allowHalfOpen: true })
      client.end(up)
      t.equal(await digest(client, isSlow), sha1(down))
    }
    t.same(
      await Promise.all(results),
      slowness.map(() => sha1(up)),
    )
    server.close()
    await path.drain(1000)
    t.equal(descriptors.left, limit, 'sockets and pipes are given back')
  })
}

t.test('the number of pipes is bounded, and they count as descriptors', async (t) => {
  const descriptors = new DescriptorBudget(DescriptorBudget.allocate(1000))
  const pool = new PipePool(new Pipes(await loadLibc()), descriptors)
  const pipes = Array.from({ length: 100 }, () => pool.take()).filter((pipe) => pipe !== undefined)
  // The bound is low, because the pipe of a slow reader stays full, with up to a mebibyte.
  t.equal(pipes.length, 64)
  t.equal(descriptors.left, 1000 - 64 * 2)
  for (const pipe of pipes.slice(0, 32)) pool.giveBack(pipe)
  for (const pipe of pipes.slice(32)) pool.discard(pipe)
  t.equal(descriptors.left, 1000 - 16 * 2, 'a few idle ones are kept')
  t.ok(pool.take())
  t.ok(pool.shed())
  t.notOk(pool.shed(), 'only once')
  t.equal(descriptors.left, 1000 - 2, 'the one in use is not shed')
})

for (const bulk of [0, 8 << 20]) {
  t.test(`urgent data behind ${bulk} bytes does not stop the flow`, async (t) => {
    const libc = await loadLibc()
    const sockets = new Sockets(libc)
    const memory = allocateNative(libc, 1 << 17)
    let text = ''
    let received = 0
    const server = createServer((socket) => {
      socket.on('data', (chunk: Buffer) => {
        received += chunk.length
        text = `${text}${chunk.toString()}`.slice(-14)
      })
      socket.on('end', () => socket.end())
    }).listen(0, ip)
    await once(server, 'listening')
    const address = server.address()
    const { path, port } = open(typeof address === 'object' && address ? address.port : 0)
    const fd = sockets.open(addressFamilies.IPv4, 'stream')
    sockets.connect(fd, encodeAddress({ ip, port: await port }))
    const urgent = 1
    const say = async (words: string, flags: number) => {
      memory.bytes.write(words)
      t.equal(libc.send(fd, memory.address, words.length, flags), words.length)
      await sleep(20)
    }
    await sleep(20)
    for (let left = bulk; left > 0;) {
      const sent = libc.send(fd, memory.address, Math.min(left, memory.bytes.length), 0)
      if (sent > 0) left -= sent
      else await sleep(1)
    }
    await say('before', 0)
    // The out-of-band byte is lost, as in every relay that does not read such bytes.
    memory.bytes.write('abcX')
    libc.send(fd, memory.address, 4, urgent)
    memory.bytes.write('after')
    libc.send(fd, memory.address, 5, 0)
    sockets.finishSending(fd)
    while (!text.endsWith('after')) await sleep(5)
    t.equal(text, 'beforeabcafter')
    t.equal(received, bulk + text.length)
    sockets.close(fd)
    server.close()
    await path.drain(1000)
  })
}

t.test('an abort closes also what a mistake has left open', async (t) => {
  const server = createServer((socket) => socket.on('error', () => undefined)).listen(0, ip)
  await once(server, 'listening')
  const address = server.address()
  const { path, port } = open(
    typeof address === 'object' && address ? address.port : 0,
    1000,
    () => {
      throw new Error('a mistake at the end of every connection')
    },
  )
  const to = { host: ip, port: await port }
  const clients = Array.from({ length: 3 }, () => connect(to).on('error', () => undefined))
  const ended = Promise.all(
    clients.map((client) => new Promise((resolve) => client.resume().once('close', resolve))),
  )
  for (let count = 0; count < clients.length; count++) await once(server, 'connection')
  await sleep(50)
  path.abort()
  await ended
  await t.rejects(once(connect(to), 'connect'))
  server.close()
})

// A connection takes two descriptors. With one of the limits the accept finds none, with the other
// the dial.
for (const limit of [80, 81]) {
  t.test(
    `with all ${limit} descriptors in use new clients wait, and established ones go on`,
    async (t) => {
      // The proxy is a process with a low limit, of which its budget does not know.
      const script = `
    const { dataPathLoaders } = await import(process.argv[1] + '/create-data-path.js')
    const { DescriptorBudget } = await import(process.argv[1] + '/descriptors.js')
    const path = (await dataPathLoaders.splice())({
      now: () => performance.now(), random: Math.random, passiveHealth: false, accessLog: undefined,
      descriptors: new DescriptorBudget(DescriptorBudget.allocate(10000)),
      warn: (message) => process.stderr.write(message + '\\n'),
    })
    const port = Number(process.argv[2])
    const endpoints = [{ key: 'e', ip: '${ip}', port }]
    process.stdout.write(String(await path.open({ key: 'k', service: 's', protocol: 'TCP',
      address: '${ip}', port: 0, endpoints, servingKeys: [], udpIdleMs: 250 })))
    setInterval(() => undefined, 1000)`
      const server = createServer((socket) => socket.pipe(socket)).listen(0, ip)
      await once(server, 'listening')
      const address = server.address()
      const folder = new URL('../../../lib/modes/userspace/datapath', import.meta.url).pathname
      const child = spawn(
        'sh',
        [
          ...[
            '-c',
            `ulimit -n ${limit} && exec "$@"`,
            'sh',
            process.execPath,
            '--input-type=module',
          ],
          ...['-e', script, '--', folder],
          String(typeof address === 'object' && address ? address.port : 0),
        ],
        { stdio: ['ignore', 'pipe', 'pipe'] },
      )
      let warnings = ''
      child.stderr.on('data', (chunk: Buffer) => (warnings += chunk.toString()))
      const died = once(child, 'close').then(() => {
        throw new Error(`it ended at once: ${warnings}`)
      })
      const [output] = (await Promise.race([once(child.stdout, 'data'), died])) as [Buffer]
      died.catch(() => undefined)
      const port = Number(output.toString())

      /** Whether an answer comes in this time. */
      const ask = (socket: Socket, ms = patienceMs) =>
        new Promise<boolean>((resolve) => {
          setTimeout(() => resolve(false), ms).unref()
          socket.once('data', () => resolve(true))
          socket.once('close', () => resolve(false))
          socket.once('error', () => resolve(false))
          socket.write('hello')
        })
      const clients = Array.from({ length: 60 }, () => connect({ host: ip, port }))
      const answered = await Promise.all(clients.map((client) => ask(client, 20_000)))
      const served = clients.filter((_, index) => answered[index])
      t.ok(served.length > 5 && served.length < 40, `some were served: ${served.length}`)
      t.match(warnings, /EMFILE/, 'the operator is told')
      t.ok(
        (await Promise.all(served.map((client) => ask(client)))).every(Boolean),
        'the established still answer',
      )
      const waiting = clients.filter((client, index) => !answered[index] && !client.destroyed)
      // A connection is lost if its accept took the last descriptor and its dial finds none.
      t.ok(served.length + waiting.length >= clients.length - 2, `${waiting.length} wait`)
      const heard = waiting.map((client) => once(client, 'data').then(() => client.destroy()))
      for (const client of served) client.destroy()
      await Promise.all(heard)
      const late = connect({ host: ip, port })
      t.ok(await ask(late), 'there is room again')
      late.destroy()
      child.kill('SIGKILL')
      server.close()
    },
  )
}

t.test('a timeout queue expires in order, and forgets removed items', async (t) => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'] })
  t.teardown(() => mock.timers.reset())
  const pass = async (ms: number) => {
    mock.timers.tick(ms)
    await new Promise((resolve) => setImmediate(resolve))
  }
  const expired: string[] = []
  const queue = new TimeoutQueue<{ name: string }>(
    100,
    () => Date.now(),
    (item) => expired.push(item.name),
  )
  const [a, b, c] = ['a', 'b', 'c'].map((name) => ({ name }))
  if (!a || !b || !c) throw new Error('unreachable')
  queue.add(a)
  await pass(60)
  queue.add(b)
  queue.add(c)
  queue.delete(b)
  await pass(39)
  t.same(expired, [])
  await pass(1)
  t.same(expired, ['a'])
  await pass(60)
  t.same(expired, ['a', 'c'])
  queue.add(a)
  await pass(100)
  t.same(expired, ['a', 'c', 'a'], 'works again after it was empty')
})

t.test('what arrives while a thread is held up is in time', async (t) => {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  const item = {}
  let expired = 0
  const queue = new TimeoutQueue<object>(
    50,
    () => performance.now(),
    () => expired++,
  )
  const socket = connect(port, '127.0.0.1').on('connect', () => queue.delete(item))
  queue.add(item)
  // Connecting begins in the tick before this one, and its end is read only after it.
  process.nextTick(() => {
    blockFor(200)
  })
  await once(socket, 'connect')
  await new Promise((resolve) => setTimeout(resolve, 100))
  t.equal(expired, 0)
  socket.destroy()
  server.close()
})

t.test('a recency list knows the least recently used item', async (t) => {
  class Item implements Recent<Item> {
    older: Item | undefined
    newer: Item | undefined
  }
  const [a, b, c] = [new Item(), new Item(), new Item()]
  const list = new RecencyList<Item>()
  for (const item of [a, b, c]) list.add(item)
  t.equal(list.oldest, a)
  list.use(a)
  t.equal(list.oldest, b)
  list.use(c)
  t.equal(list.oldest, b)
  list.remove(b)
  t.equal(list.oldest, a)
  list.remove(a)
  list.remove(c)
  t.equal(list.oldest, undefined)
  t.equal(list.size, 0)
  list.add(b)
  t.equal(list.oldest, b)
})
