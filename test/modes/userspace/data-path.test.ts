/** The same tests for each data path, with real sockets on loopback. */
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { connect, createServer, type Server, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { loadLibc } from '../../../lib/kernel/sockets/libc.js'
import { Sockets } from '../../../lib/kernel/sockets/sockets.js'
import { NativeSocket } from '../../../lib/lab/world/native-socket.js'
import {
  dataPathLoaders,
  type DataPath,
} from '../../../lib/modes/userspace/datapath/create-data-path.js'
import { descriptorOf } from '../../../lib/modes/userspace/datapath/net/node-sockets.js'
import { dialTcp } from '../../../lib/modes/userspace/datapath/net/dialer.js'
import { DescriptorBudget } from '../../../lib/modes/userspace/datapath/descriptors.js'
import type { Test } from 'tap'
import {
  endpointChanges,
  type AccessEntry,
  type DataPathDeps,
  type ListenerSpec,
  type Target,
} from '../../../lib/modes/userspace/datapath/data-path.js'
import type { Balance } from '../../../lib/state/balance.js'
import { lastReports, type ListenerCounts } from '../../../lib/modes/userspace/datapath/traffic.js'
import { openSilentPort } from '../../support/silent-server.js'
import { untilTrue } from '../../support/until.js'
import { blockFor } from '../../support/block.js'

const host = '127.0.0.1'
const budget = 200
/** The part of the budget that one listener may use; the rest is left for others. */
const mostOfOne = 188
/** The descriptors that a data path may keep for later connections until it drains. */
const keeps: Readonly<Record<string, number>> = { splice: 32 }

for (const [name, load] of Object.entries(dataPathLoaders)) {
  t.test(`data path ${name}`, async (t) => {
    const create = await load()
    tcpTests(t, create)
    udpTests(t, create)
  })
}

type Create = (deps: DataPathDeps) => DataPath

/** Takes reports until one says that the endpoint has left. */
async function leaves(path: DataPath, { key }: Target): Promise<void> {
  while (!path.takeCounts().some(({ left }) => left.includes(key))) await sleep(1)
}

function tcpTests(t: Test, create: Create): void {
  t.test('US60: connections go to the endpoints in turn', async (t) => {
    const bench = await openBench(t, create, { tcp: ['a', 'b', 'c'] })
    const names = []
    for (let round = 0; round < 9; round++) names.push(await ask(bench.port))
    t.same(names.slice(0, 3).toSorted(), ['a', 'b', 'c'])
    t.same(names.slice(3, 6), names.slice(0, 3))
    t.same(names.slice(6, 9), names.slice(0, 3))
    await bench.settled()
    const [counts] = bench.path.takeCounts()
    t.same(
      counts?.endpoints.map(({ connections }) => connections),
      [3, 3, 3],
    )
    t.equal(sum(counts, 'bytesToEndpoint'), 9 * 'name?'.length)
    t.equal(sum(counts, 'bytesToClient'), 9)
    t.match(bench.entries[0], { end: 'ok', attempts: 1, bytesToEndpoint: 5, bytesToClient: 1 })
  })

  t.test('US44: each side may stop sending and go on receiving', async (t) => {
    const upload = await openBench(t, create, {
      serve: (socket) => {
        let received = 0
        socket.on('data', (chunk) => (received += chunk.length))
        // The answer comes after the client has closed, and is larger than any buffer.
        socket.on('end', () => socket.end(Buffer.alloc(received, 'x')))
      },
    })
    const client = dial(upload.port)
    client.end(Buffer.alloc(3_000_000))
    t.equal((await readAll(client)).length, 3_000_000)

    let late = ''
    const download = await openBench(t, create, {
      serve: (socket) => {
        socket.end('the end')
        const chunks: Buffer[] = []
        socket.on('data', (chunk) => chunks.push(chunk))
        socket.on('end', () => (late = Buffer.concat(chunks).toString()))
      },
    })
    const other = dial(download.port)
    t.equal((await readAll(other)).toString(), 'the end')
    other.end('still here')
    await untilTrue(() => late !== '')
    t.equal(late, 'still here')
  })

  t.test('a reset on one side is passed to the other', async (t) => {
    const sockets: Socket[] = []
    const bench = await openBench(t, create, { serve: (socket) => sockets.push(socket) })
    const client = dial(bench.port)
    client.write('x')
    await untilTrue(() => sockets.length === 1)
    sockets[0]?.resetAndDestroy()
    t.equal(await errorOf(client), 'ECONNRESET')

    const leaving = dial(bench.port)
    leaving.write('x')
    await untilTrue(() => sockets.length === 2 && (sockets[1]?.bytesRead ?? 0) > 0)
    const reset = errorOf(sockets[1]!)
    leaving.resetAndDestroy()
    t.equal(await reset, 'ECONNRESET')
    await bench.settled()
  })

  t.test('a reset in the middle of a stream is not passed as its end', async (t) => {
    const sockets: Socket[] = []
    const part = Buffer.alloc(16_000_000)
    const bench = await openBench(t, create, {
      serve: (socket) => {
        sockets.push(socket)
        socket.write(part)
      },
    })
    // While the client does not read, the last bytes and then the reset wait in the kernel.
    const client = dial(bench.port)
    client.pause()
    await untilTrue(() => sockets.length === 1)
    await sleep(300)
    sockets[0]?.resetAndDestroy()
    t.equal(await errorOf(client), 'ECONNRESET')
    t.ok(client.bytesRead < part.length)

    const leaving = dial(bench.port)
    leaving.resume()
    await untilTrue(() => sockets.length === 2)
    leaving.write(part)
    await sleep(300)
    const other = errorOf(sockets[1]!)
    leaving.resetAndDestroy()
    t.equal(await other, 'ECONNRESET')
    await bench.settled()
  })

  t.test('a reset right behind a short answer is not passed as its end', async (t) => {
    const bench = await openBench(t, create, {
      serve: (socket) =>
        socket.on('data', () => socket.write('half', () => socket.resetAndDestroy())),
    })
    const client = dial(bench.port)
    client.write('x')
    t.equal(await errorOf(client), 'ECONNRESET')
    t.equal(client.bytesRead, 'half'.length)
    await bench.settled()

    // A client that has ended its sending may wait for an answer that goes on until the end.
    const waiting = dial(bench.port)
    waiting.resume()
    waiting.end('x')
    await untilTrue(() => bench.entries.length === 2)
    t.match(bench.entries[1], { end: 'ECONNRESET', bytesToClient: 'half'.length })
  })

  t.test('the last words of a side that is still sent to arrive before its reset', async (t) => {
    const sockets: Socket[] = []
    const bench = await openBench(t, create, { serve: (socket) => sockets.push(socket) })
    const pairs = []
    for (const index of [0, 1]) {
      const client = dial(bench.port)
      client.write('x')
      await untilTrue(() => sockets[index]?.bytesRead === 1)
      pairs.push({ client, server: sockets[index]! })
    }
    const [asked, left] = pairs
    const resets = pairs.map(({ client, server }, index) => errorOf(index ? server : client))
    // The proxy passes the bytes on before it hears of the answer behind them, and of the reset.
    asked!.client.write('more')
    asked!.server.write('too large')
    asked!.server.resetAndDestroy()
    t.equal(await resets[0], 'ECONNRESET')
    t.equal(asked!.client.bytesRead, 'too large'.length)

    left!.server.write('more')
    left!.client.write('quit')
    left!.client.resetAndDestroy()
    t.equal(await resets[1], 'ECONNRESET')
    t.equal(left!.server.bytesRead, 'xquit'.length)
    await bench.settled()
  })

  t.test('an orderly end arrives as an end although a reset comes behind it', async (t) => {
    const native = new Sockets(await loadLibc())
    const sockets: Socket[] = []
    const bench = await openBench(t, create, { serve: (socket) => sockets.push(socket) })
    const goings = [
      () => undefined,
      (client: Socket) => client.write('more'),
      (client: Socket) => client.end(),
    ]
    for (const [index, goOn] of goings.entries()) {
      const client = dial(bench.port)
      client.write('x')
      await untilTrue(() => sockets[index]?.bytesRead === 1)
      const server = sockets[index]!
      let end: number | undefined
      client.once('end', () => (end = native.endOf(descriptorOf(client)!)))
      const answer = readAll(client)
      // The proxy hears of all this at once, and of the client first.
      goOn(client)
      server.write('answer')
      native.finishSending(descriptorOf(server)!)
      server.resetAndDestroy()
      t.equal((await answer).toString(), 'answer')
      t.equal(end, 0, 'the client reads an end')
      client.destroy()
    }
    await bench.settled()
  })

  t.test('a client that sends nothing receives what the endpoint sends first', async (t) => {
    const bench = await openBench(t, create, {
      serve: (socket) => {
        socket.write('220 ready')
        socket.on('end', () => socket.end())
      },
    })
    const client = dial(bench.port)
    t.equal(String((await once(client, 'data'))[0]), '220 ready')
    client.end()
    await once(client, 'end')
  })

  t.test('an endpoint that never answers delays only its own clients', async (t) => {
    let ended = 0
    const bench = await openBench(t, create, {
      tcp: ['a'],
      serve: (socket) => {
        socket.resume()
        socket.on('end', () => {
          ended++
          socket.end()
        })
      },
    })
    const clients = [1, 2, 3, 4, 5, 6].map(() => dial(bench.port))
    const heard = clients.map(() => '')
    for (const [index, client] of clients.entries()) {
      client.on('data', (chunk) => (heard[index] = String(chunk)))
      client.write('name?')
    }
    await untilTrue(() => heard.filter((text) => text === 'a').length === 3)
    await sleep(300)
    t.equal(heard.filter((text) => text === '').length, 3, 'nobody else has to wait')
    t.equal(bench.path.takeCounts()[0]?.active, 6)
    for (const client of clients) client.end()
    await Promise.all(clients.map((client) => once(client, 'end')))
    t.equal(ended, 3, 'and their end gets through')
    await bench.settled()
  })

  t.test('an endpoint that never reads makes its client wait, and uses no memory', async (t) => {
    const size = 64_000_000
    let reader: Socket | undefined
    const bench = await openBench(t, create, { serve: (socket) => (reader = socket.pause()) })
    const client = dial(bench.port)
    const data = Buffer.alloc(size, 'x')
    const memory = process.memoryUsage().arrayBuffers
    client.end(data)
    let before = -1
    await untilTrue(() => {
      const hasStalled = reader !== undefined && before === inFlight(client, size)
      before = inFlight(client, size)
      return hasStalled
    }, 200)
    t.ok(before > size / 4, `${before} bytes are still with the client`)
    const growth = process.memoryUsage().arrayBuffers - memory
    t.ok(growth < 8_000_000, `${growth} bytes are kept here`)
    let received = 0
    reader?.on('data', (chunk) => (received += chunk.length))
    reader?.on('end', () => reader?.end())
    reader?.resume()
    client.resume()
    await once(client, 'end')
    t.equal(received, size)
    await bench.settled()
  })

  t.test('a slow reader slows down the sender, and gets everything', async (t) => {
    const size = 64_000_000
    let sender: Socket | undefined
    const bench = await openBench(t, create, {
      serve: (socket) => {
        sender = socket
        socket.end(Buffer.alloc(size, 'x'))
      },
    })
    const client = dial(bench.port)
    client.pause()
    // The buffers of both sockets and of the proxy fill up. Then the sender has to wait.
    let before = -1
    await untilTrue(() => {
      const stalled = sender !== undefined && before === inFlight(sender, size)
      before = sender ? inFlight(sender, size) : -1
      return stalled
    }, 200)
    t.ok(before > size / 4, `${before} bytes are still with the sender`)
    t.equal((await readAll(client)).length, size)
    client.end()
    await bench.settled()
  })

  t.test('US40: a connection to a dead endpoint is tried at another one', async (t) => {
    const bench = await openBench(t, create, { tcp: ['a'], dead: 2 })
    for (let round = 0; round < 4; round++) t.equal(await ask(bench.port), 'a')
    const [counts] = bench.path.takeCounts()
    t.ok(sum(counts, 'dialErrors') >= 2)
    t.equal(counts?.refused, 0)

    bench.update({ endpoints: bench.dead })
    const client = dial(bench.port)
    t.equal(await errorOf(client), 'ECONNRESET', 'nobody answers: the client is told')
    await bench.settled()
    t.equal(bench.path.takeCounts()[0]?.refused, 1)
    t.match(bench.entries.at(-1), { end: 'ECONNREFUSED', attempts: 4, endpoint: '' })
  })

  t.test('passive health: an endpoint that failed is tried after the others', async (t) => {
    // Its penalty would end while a busy machine makes these connections.
    const now = () => 0
    const bench = await openBench(t, create, { tcp: ['a', 'b'], dead: 1, passiveHealth: true, now })
    for (let round = 0; round < 12; round++) await ask(bench.port)
    await bench.settled()
    t.equal(bench.entries.filter(({ attempts }) => attempts > 1).length, 1)
  })

  t.test('US42: a client of a silent endpoint does not delay other clients', async (t) => {
    const silent = await openSilent(t)
    const bench = await openBench(t, create, { tcp: ['a'] })
    bench.update({ endpoints: [silent, ...bench.spec.endpoints] })
    const order: string[] = []
    await Promise.all(
      [1, 2, 3, 4].map(async (number) => {
        const name = await ask(bench.port)
        order.push(`${number}${name}`)
      }),
    )
    await bench.settled()
    t.equal(order.length, 4, 'each found the endpoint that answers')
    const attempts = bench.entries.map((entry) => entry.attempts)
    t.ok(attempts.includes(1) && attempts.includes(2))
    t.equal(attempts[0], 1, 'the first to finish never waited')
    t.equal(attempts.at(-1), 2)
  })

  t.test('US62, US41: affinity lasts until the endpoint cannot be reached', async (t) => {
    const bench = await openBench(t, create, { tcp: ['a', 'b', 'c'], affinityMs: 60_000 })
    const own = await ask(bench.port)
    for (let round = 0; round < 5; round++) t.equal(await ask(bench.port), own)
    await bench.stopServer(own)
    const other = await ask(bench.port)
    t.not(other, own)
    for (let round = 0; round < 5; round++) t.equal(await ask(bench.port), other)
  })

  t.test(
    'least-connections counts a connection until it ends, and a failed dial not',
    async (t) => {
      const bench = await openBench(t, create, {
        tcp: ['a', 'b'],
        dead: 1,
        balance: 'least-connections',
      })
      const kept = dial(bench.port)
      kept.write('name?')
      const busy = String((await once(kept, 'data'))[0])
      for (let round = 0; round < 6; round++) {
        t.not(await ask(bench.port), busy, 'the other has none')
        // The listener notices the end of a connection a moment after the client.
        await untilTrue(() => bench.entries.length > round)
      }
      t.ok(
        bench.entries.some(({ attempts }) => attempts === 2),
        'the dead one was dialed, too',
      )
      bench.update({ endpoints: bench.spec.endpoints.slice(1) })
      kept.destroy()
      await untilTrue(() => bench.entries.length > 6)
      t.same([await ask(bench.port), await ask(bench.port)].toSorted(), ['a', 'b'], 'turns again')
    },
  )

  t.test('source-hash and maglev know the client, without affinity and access log', async (t) => {
    for (const balance of ['source-hash', 'maglev'] as const) {
      const bench = await openBench(t, create, { tcp: ['a', 'b', 'c'], balance, isLogged: false })
      const from = async (localAddress: string) => {
        const client = connect({ host, port: bench.port, localAddress })
        client.write('name?')
        const name = String((await once(client, 'data'))[0])
        client.destroy()
        return name
      }
      const clients = Array.from({ length: 24 }, (_, index) => `127.0.7.${index + 1}`)
      const first = await Promise.all(clients.map(from))
      t.same(await Promise.all(clients.map(from)), first)
      t.equal(new Set(first).size, 3, 'clients are spread')
    }
  })

  t.test('US45, US74: endpoints and listeners change under established connections', async (t) => {
    const bench = await openBench(t, create, { tcp: ['a', 'b'] })
    const [first, second] = bench.spec.endpoints
    bench.update({ endpoints: [first!] })
    const client = dial(bench.port)
    client.write('name?')
    t.equal(String((await once(client, 'data'))[0]), 'a')
    bench.update({ endpoints: [second!] })
    t.equal(await ask(bench.port), 'b')
    bench.path.close(bench.spec.key)
    t.equal(await errorOf(dial(bench.port)), 'ECONNREFUSED')
    client.write('name?')
    t.equal(String((await once(client, 'data'))[0]), 'a', 'the old one lives on')
    t.same(bench.path.takeCounts(), [], 'and is not counted for a Service that is gone')
    client.end()
    await once(client, 'end')
    await bench.settled()
  })

  t.test('an endpoint that left is counted until its last connection ends', async (t) => {
    const bench = await openBench(t, create, { tcp: ['a', 'b'] })
    const [first, second] = bench.spec.endpoints
    bench.update({ endpoints: [first!] })
    const client = dial(bench.port)
    client.write('name?')
    await once(client, 'data')
    bench.update({ endpoints: [second!] })
    const other = dial(bench.port)
    other.write('name?')
    await once(other, 'data')
    const reports = Array.from({ length: 2 * lastReports }, () => bench.path.takeCounts())
    t.same(
      reports.flat().flatMap(({ left }) => left),
      [],
      'it has a connection',
    )
    client.end()
    await leaves(bench.path, first!)
    other.end()
    await once(other, 'end')
    await bench.settled()
  })

  t.test('US43, US61: without endpoints a connection is reset, and counted', async (t) => {
    const bench = await openBench(t, create, { tcp: [] })
    t.equal(await errorOf(dial(bench.port)), 'ECONNRESET')
    await bench.settled()
    t.match(bench.entries, [{ end: 'no endpoint', attempts: 0 }])
    t.match(bench.path.takeCounts(), [{ refused: 1, active: 0, endpoints: [] }])
  })

  t.test('US46: keep-alive probes both sides after a minute of silence', async (t) => {
    const bench = await openBench(t, create, { tcp: ['a'] })
    const client = dial(bench.port)
    client.write('name?')
    await once(client, 'data')
    const [endpoint] = bench.spec.endpoints
    let ours: readonly (number | undefined)[] = []
    // Keep-alive starts some seconds after the connection, because most connections end soon. Until
    // everything is acknowledged the kernel shows another timer. To read all sockets of a kernel is
    // expensive, so the test does it once in a second.
    await untilTrue(() => {
      ours = keepAliveSeconds(
        ({ local, remote }) => local === bench.port || remote === endpoint?.port,
      )
      return ours.every((seconds) => seconds !== undefined)
    }, 1000)
    t.equal(ours.length, 2)
    for (const seconds of ours) t.ok(seconds && seconds > 30 && seconds <= 60, `${seconds} s`)
    client.end()
    await once(client, 'end')
    await bench.settled()
  })

  t.test('a port in use gives an error with a code, and leaves nothing behind', async (t) => {
    const bench = await openBench(t, create, { tcp: ['a'] })
    const again = { ...bench.spec, key: 'again', port: bench.port }
    await t.rejects(bench.path.open(again), { code: 'EADDRINUSE' })
    bench.path.close(bench.spec.key)
    t.equal(await bench.path.open(again), bench.port)
    t.equal(await ask(bench.port), 'a')
  })

  t.test('drain: new connections are refused, old ones finish, and the last are cut', async (t) => {
    const bench = await openBench(t, create, { tcp: ['a'] })
    const quick = dial(bench.port)
    quick.write('name?')
    await once(quick, 'data')
    const stubborn = dial(bench.port)
    stubborn.write('name?')
    await once(stubborn, 'data')
    const cut = errorOf(stubborn)
    const drained = bench.path.drain(60_000)
    t.equal(await errorOf(dial(bench.port)), 'ECONNREFUSED')
    quick.write('name?')
    t.equal(String((await once(quick, 'data'))[0]), 'a')
    quick.end()
    await untilTrue(() => bench.entries.length === 1)
    // The end of the time, whenever a busy machine comes here.
    await bench.path.drain(0)
    await drained
    t.equal(await cut, 'ECONNRESET')
    t.same(
      bench.entries.map(({ end }) => end),
      ['ok', 'reset'],
    )
    t.equal(bench.descriptors.left, budget)
    const traffic = [{ connections: 2, bytesToEndpoint: 15, bytesToClient: 3 }]
    t.match(bench.path.takeCounts(), [{ active: 0, endpoints: traffic }], 'all are counted')
  })

  t.test('drain: more weeks than a timer can wait cut nothing', async (t) => {
    const bench = await openBench(t, create, { tcp: ['a'] })
    const client = dial(bench.port)
    client.write('name?')
    await once(client, 'data')
    const drained = bench.path.drain(720 * 3_600_000)
    await sleep(50)
    client.write('name?')
    t.equal(String((await once(client, 'data'))[0]), 'a')
    client.end()
    await drained
  })

  t.test('drain: a client that does not read does not delay it', async (t) => {
    const bench = await openBench(t, create, {
      serve: (socket) => socket.write(Buffer.alloc(32_000_000)),
    })
    const deaf = dial(bench.port)
    deaf.on('error', () => undefined)
    deaf.pause()
    await untilTrue(() => bench.descriptors.left < budget)
    await sleep(300)
    await bench.path.drain(100)
    t.equal(bench.descriptors.left, budget)
    t.match(bench.entries, [{ endpoint: bench.keyOf('serve') }])
    deaf.destroy()
  })

  t.test('without free descriptors only new connections wait or are refused', async (t) => {
    const bench = await openBench(t, create, { tcp: ['a'] })
    const clients: Socket[] = []
    for (let number = 0; number < mostOfOne / 2; number++) {
      const client = dial(bench.port)
      client.write('name?')
      await once(client, 'data')
      clients.push(client)
    }
    t.equal(bench.descriptors.left, budget - mostOfOne)
    const late = dial(bench.port)
    late.on('error', () => undefined)
    await untilTrue(() => bench.warnings.length > 0)
    t.match(bench.warnings[0], /file descriptors/)
    for (const client of clients) {
      client.write('name?')
      t.equal(String((await once(client, 'data'))[0]), 'a')
      client.destroy()
    }
    late.destroy()
    await bench.settled()
    t.equal(await ask(bench.port), 'a', 'as soon as there are descriptors again')
  })

  t.test('a thousand clients that disconnect at once leave nothing behind', async (t) => {
    const bench = await openBench(t, create, { tcp: ['a', 'b'], dead: 1 })
    for (let round = 0; round < 20; round++) {
      await Promise.all(
        Array.from({ length: 50 }, async (_, index) => {
          if (index % 5 > 0) return ask(bench.port)
          // One client in five closes at once without sending anything.
          const client = dial(bench.port)
          client.on('error', () => undefined)
          await once(client, 'connect')
          if (index % 2) client.resetAndDestroy()
          else client.destroy()
          return ''
        }),
      )
    }
    await bench.settled()
    t.equal(bench.path.takeCounts()[0]?.active, 0)
  })

  // libuv refuses to reset a socket whose end is on its way, and Node never closes it then.
  t.test('clients that leave in the middle of an answer leave no descriptor open', async (t) => {
    const serve = (socket: Socket) => socket.on('end', () => socket.end()).pipe(socket)
    const bench = await openBench(t, create, { serve })
    const own = () => readdirSync('/proc/self/fd').length
    await ask(bench.port)
    await bench.settled()
    const before = own()
    for (let round = 0; round < 10; round++) {
      await Promise.all(
        Array.from({ length: 40 }, async (_, index) => {
          const client = dial(bench.port).on('error', () => undefined)
          const closed = once(client, 'close')
          await once(client, 'connect')
          client.pause().write(Buffer.alloc(200_000))
          await sleep(index % 10)
          client.end()
          await sleep(index % 4)
          client.destroy()
          await closed
        }),
      )
    }
    await bench.settled()
    const most = before + (keeps[bench.path.name] ?? 0)
    await untilTrue(() => own() <= most)
    t.ok(own() <= most, `${own()} descriptors, ${before} before`)
  })
}

function udpTests(t: Test, create: Create): void {
  t.test(
    'US50, US52: answers come from the service port, also the largest datagrams',
    async (t) => {
      const bench = await openBench(t, create, { udp: ['a'] })
      const client = await openUdpClient(t, bench.port)
      for (const size of [0, 1, 4097, 65_000]) {
        const reply = await client.ask(Buffer.alloc(size, 'q'))
        t.equal(reply.length, size + 1, `${size} bytes`)
      }
      t.equal(client.repliesFrom.size, 1)
      const [counts] = bench.path.takeCounts()
      t.equal(sum(counts, 'connections'), 1)
      t.equal(sum(counts, 'bytesToEndpoint'), 69_098)
    },
  )

  t.test('US51: a UDP client keeps its endpoint until it is idle for the time-out', async (t) => {
    const bench = await openBench(t, create, { udp: ['a', 'b'], udpIdleMs: 10_000 })
    const client = await openUdpClient(t, bench.port)
    const first = await client.name()
    for (let round = 0; round < 5; round++) t.equal(await client.name(), first)
    t.not(await (await openUdpClient(t, bench.port)).name(), first, 'another client, the next one')
    await bench.settled()
    t.equal(await client.name(), first, 'after the time-out it is a new client')
    t.match(bench.entries[0], { protocol: 'UDP', end: 'ok', bytesToClient: 6 })
  })

  const isRoot = process.getuid?.() === 0
  t.test('a datagram from port 0 is passed on', { skip: !isRoot && 'raw sockets' }, async (t) => {
    const bench = await openBench(t, create, { udp: ['a'] })
    const client = new NativeSocket(host, 'raw', 'udp')
    // Ports, length, no checksum, and a byte.
    client.send(Uint8Array.of(0, 0, bench.port >> 8, bench.port & 255, 0, 9, 0, 0, 120), host)
    client.close()
    // Its endpoint answers, but no answer can be sent to port 0.
    await untilTrue(() => sum(bench.path.takeCounts()[0], 'bytesToClient') > 0)
    t.equal(await (await openUdpClient(t, bench.port)).name(), 'a', 'others are served')
  })

  t.test('least-connections counts UDP clients, too', async (t) => {
    const options = { udp: ['a', 'b'], balance: 'least-connections', udpIdleMs: 600_000 } as const
    const bench = await openBench(t, create, options)
    const first = await (await openUdpClient(t, bench.port)).name()
    const second = await (await openUdpClient(t, bench.port)).name()
    t.not(second, first)
    const [own] = bench.spec.endpoints.filter(({ key }) => key === bench.keyOf(second))
    const others = bench.spec.endpoints.filter((each) => each !== own)
    bench.update({ endpoints: others })
    bench.update({ endpoints: [...others, ...(own ? [own] : [])] })
    t.equal(await (await openUdpClient(t, bench.port)).name(), second, 'its client was ended')
  })

  t.test('an answer that takes longer than the idle time is not lost', async (t) => {
    const bench = await openBench(t, create, { udp: ['a'], udpIdleMs: 100, udpDelayMs: 500 })
    const client = await openUdpClient(t, bench.port)
    t.equal(await client.name(), 'a')
    await bench.settled()
    t.match(bench.entries, [{ end: 'ok', bytesToClient: 1 }])
    t.ok((bench.entries[0]?.durationMs ?? 0) < 2000, 'and then it is idle as others are')
  })

  t.test('a late answer is not lost when that to another question was fast', async (t) => {
    const udpDelayMs = ({ length }: Buffer) => length * 500
    const bench = await openBench(t, create, { udp: ['a'], udpIdleMs: 100, udpDelayMs })
    const client = await openUdpClient(t, bench.port)
    void client.ask(Buffer.alloc(1))
    t.equal(await client.name(), 'a')
    await untilTrue(() => client.count() === 2)
    await bench.settled()
    t.match(bench.entries, [{ end: 'ok', bytesToClient: 3 }], 'both by one client')
  })

  t.test('a burst of answers is not lost', async (t) => {
    const bench = await openBench(t, create, { udp: ['a'], udpAnswers: 400 })
    const client = await openUdpClient(t, bench.port)
    await client.ask(Buffer.alloc(200))
    await untilTrue(() => client.count() >= 400)
    t.equal(client.count(), 400)
  })

  t.test('the number of UDP clients is bounded; the longest silent goes first', async (t) => {
    const bench = await openBench(t, create, { udp: ['a'], udpIdleMs: 600_000 })
    const first = await openUdpClient(t, bench.port)
    await first.name()
    const flood = 40
    for (let number = 1; number < mostOfOne; number++) {
      const client = await openUdpClient(t, bench.port)
      t.equal(await client.name(), 'a')
    }
    t.equal(bench.descriptors.left, budget - mostOfOne)
    await first.name()
    const latest = []
    for (let number = 0; number < flood; number++) {
      latest.push(await openUdpClient(t, bench.port))
      t.equal(await latest[number]?.name(), 'a')
    }
    t.equal(bench.path.takeCounts()[0]?.active, mostOfOne)
    t.equal(bench.entries.length, flood)
    t.match(bench.entries, Array(flood).fill({ end: 'evicted' }))
    t.equal(await first.name(), 'a')
    t.equal(bench.entries.length, flood, 'it had spoken meanwhile, so it was not among them')
  })

  t.test('US53, E21: a UDP client gets another endpoint when its endpoint leaves', async (t) => {
    const bench = await openBench(t, create, { udp: ['a', 'b'], udpIdleMs: 600_000 })
    const client = await openUdpClient(t, bench.port)
    const first = await client.name()
    const own = bench.spec.endpoints.find(({ key }) => key === bench.keyOf(first))!
    const rest = bench.spec.endpoints.filter((target) => target !== own)
    bench.update({ endpoints: rest, servingKeys: [own.key] })
    t.equal(await client.name(), first, 'still serving')
    bench.update({ endpoints: rest, servingKeys: [] })
    t.not(await client.name(), first)
    await leaves(bench.path, own)
    bench.path.close(bench.spec.key)
    await bench.settled()
  })

  t.test('US56: after one lost datagram the next goes to another endpoint', async (t) => {
    const bench = await openBench(t, create, { udp: ['a'], deadUdp: 1, udpIdleMs: 600_000 })
    // One of two clients begins with the dead endpoint.
    for (const client of [await openUdpClient(t, bench.port), await openUdpClient(t, bench.port)]) {
      let name = ''
      for (let round = 0; round < 3000 && name === ''; round++) {
        name = await Promise.race([client.name(), sleep(100, '')])
      }
      t.equal(name, 'a')
    }
    // A connected UDP socket proves nothing, so the proxy does not try another endpoint.
    const refused = { end: 'ECONNREFUSED', attempts: 1, endpoint: `${host}:9` }
    t.ok(bench.entries.length > 0)
    t.match(bench.entries, Array(bench.entries.length).fill(refused))
    t.equal(sum(bench.path.takeCounts()[0], 'dialErrors'), bench.entries.length)
  })

  t.test('a dead UDP endpoint is not used for a while', async (t) => {
    const bench = await openBench(t, create, {
      ...{ udp: ['a'], deadUdp: 1, udpIdleMs: 600_000, passiveHealth: true },
    })
    const answers: string[] = []
    for (let client = 0; client < 6; client++) {
      answers.push(await nameOrLoss(t, bench))
    }
    // Round robin alone would send three of the six clients to the dead endpoint.
    t.equal(answers.filter((answer) => answer === '').length, 1, answers.join())
  })

  for (const ip of [host, '255.255.255.255']) {
    t.test(`US41: affinity does not hold UDP clients at ${ip}, where nobody answers`, async (t) => {
      const bench = await openBench(t, create, { udp: ['a'], affinityMs: 60_000 })
      const good = bench.spec.endpoints
      const dead = { key: `${ip}:9`, ip, port: 9 }
      bench.update({ endpoints: [dead] })
      const client = await openUdpClient(t, bench.port)
      void client.name()
      while (sum(bench.path.takeCounts()[0], 'dialErrors') === 0) await sleep(5)
      bench.update({ endpoints: [dead, ...good] })
      let name = ''
      for (let round = 0; round < 3000 && name === ''; round++) {
        name = await Promise.race([client.name(), sleep(100, '')])
      }
      t.equal(name, 'a')
    })
  }

  t.test('US56: a client that sends two datagrams at once leaves a dead endpoint', async (t) => {
    const bench = await openBench(t, create, { udp: ['a'], deadUdp: 1, udpIdleMs: 600_000 })
    for (const client of [await openUdpClient(t, bench.port), await openUdpClient(t, bench.port)]) {
      let name = ''
      for (let round = 0; round < 3000 && name === ''; round++) {
        // A resolver asks for IPv4 and IPv6 addresses like this.
        name = await Promise.race([client.name(), client.name(), sleep(100, '')])
      }
      t.equal(name, 'a')
    }
    t.ok(sum(bench.path.takeCounts()[0], 'dialErrors') > 0)
  })

  t.test('an endpoint that no way leads to gets few UDP clients and harms no other', async (t) => {
    const bench = await openBench(t, create, { udp: ['a'], passiveHealth: true })
    const ip = '255.255.255.255'
    bench.update({ endpoints: [{ key: `${ip}:9`, ip, port: 9 }, ...bench.spec.endpoints] })
    const answers: string[] = []
    for (let client = 0; client < 6; client++) {
      answers.push(await nameOrLoss(t, bench))
    }
    t.ok(answers.filter((answer) => answer === 'a').length >= 3, answers.join())
    t.ok(answers.includes(''))
  })

  t.test('a UDP endpoint that has come back gets its share again', async (t) => {
    const bench = await openBench(t, create, { udp: ['a'], passiveHealth: true })
    const { target, stop } = await openUdpServer(t, 'b')
    await stop()
    bench.update({ endpoints: [target, ...bench.spec.endpoints] })
    const nameOf = () => nameOrLoss(t, bench)
    // Its port is closed.
    while ((await nameOf()) !== '');
    await openUdpServer(t, 'b', 0, target.port)
    await sleep(1100)
    const names: string[] = []
    for (let client = 0; client < 8; client++) names.push(await nameOf())
    t.ok(names.filter((name) => name === 'b').length >= 3, names.join())
  })

  t.test('US61: a datagram without an endpoint is dropped and counted', async (t) => {
    const bench = await openBench(t, create, { udp: [] })
    const client = await openUdpClient(t, bench.port)
    void client.name()
    let counts: readonly ListenerCounts[] = []
    await untilTrue(() => (counts = bench.path.takeCounts()).length > 0)
    t.match(counts, [{ refused: 1, active: 0, endpoints: [] }])
    t.equal(bench.descriptors.left, budget)
    t.same(bench.entries, [])
  })

  t.test('US54: UDP clients end with their listener, also if they wait', async (t) => {
    const bench = await openBench(t, create, { udp: ['a'], udpIdleMs: 600_000, udpDelayMs: 200 })
    const client = await openUdpClient(t, bench.port)
    void client.name()
    await untilTrue(() => bench.descriptors.left < budget)
    bench.path.close(bench.spec.key)
    t.match(bench.entries, [{ end: 'listener closed', bytesToClient: 0 }])
    await bench.settled()
    await sleep(400)
    t.equal(client.repliesFrom.size, 0)
  })
}

interface BenchOptions {
  readonly tcp?: readonly string[]
  readonly udp?: readonly string[]
  readonly serve?: (socket: Socket) => void
  /** How many more endpoints have no listener. */
  readonly dead?: number
  readonly deadUdp?: number
  readonly affinityMs?: number
  readonly balance?: Balance
  /** False: there is no access log, as on most nodes. */
  readonly isLogged?: boolean
  readonly udpIdleMs?: number
  readonly udpDelayMs?: Delay
  /** How many answers a UDP endpoint sends to a request, at once. */
  readonly udpAnswers?: number
  readonly passiveHealth?: boolean
  readonly now?: () => number
}

/** How long a UDP endpoint thinks about a datagram. */
type Delay = number | ((datagram: Buffer) => number)

/** A data path with one listener and its endpoints, and a record of what it reports. */
async function openBench(t: Test, create: Create, options: BenchOptions) {
  const descriptors = new DescriptorBudget(DescriptorBudget.allocate(budget))
  const entries: AccessEntry[] = []
  const warnings: string[] = []
  const path = create({
    now: options.now ?? (() => performance.now()),
    random: Math.random,
    descriptors,
    passiveHealth: options.passiveHealth ?? false,
    accessLog: options.isLogged === false ? undefined : (entry) => entries.push(entry),
    warn: (message) => warnings.push(message),
  })
  const servers = new Map<string, { readonly target: Target; stop(): Promise<void> }>()
  for (const name of options.tcp ?? []) servers.set(name, await openTcpServer(t, sayName(name)))
  if (options.serve) servers.set('serve', await openTcpServer(t, options.serve))
  for (const name of options.udp ?? [])
    servers.set(name, await openUdpServer(t, name, options.udpDelayMs, 0, options.udpAnswers))
  const dead = await closedPorts(t, options.dead ?? 0)
  const isUdp = options.udp !== undefined
  let spec: ListenerSpec = {
    key: `IPv4 default/bench/${isUdp ? 'UDP' : 'TCP'} cluster`,
    service: 'default/bench',
    protocol: isUdp ? 'UDP' : 'TCP',
    address: host,
    port: 0,
    endpoints: [
      ...dead,
      ...(options.deadUdp ? [{ key: `${host}:9`, ip: host, port: 9 }] : []),
      ...[...servers.values()].map(({ target }) => target),
    ],
    servingKeys: [],
    affinityMs: options.affinityMs,
    ...(options.balance ? { balance: { word: options.balance, weights: [] } } : {}),
    udpIdleMs: options.udpIdleMs ?? 250,
  }
  const port = await path.open(spec)
  t.teardown(() => path.drain(0))
  return {
    path,
    port,
    dead,
    entries,
    warnings,
    descriptors,
    get spec() {
      return spec
    },
    update(change: Partial<ListenerSpec>) {
      const before = spec.endpoints
      spec = { ...spec, ...change }
      path.update(spec.key, endpointChanges(before, spec))
    },
    keyOf: (name: string) => servers.get(name)?.target.key,
    stopServer: (name: string) => servers.get(name)?.stop(),
    /** Waits until every connection has ended and released its descriptors. */
    settled: () =>
      untilTrue(() => descriptors.left >= budget - (isUdp ? 0 : (keeps[path.name] ?? 0))),
  }
}

function sayName(name: string) {
  return (socket: Socket) => {
    socket.on('data', () => socket.write(name))
    socket.on('end', () => socket.end())
  }
}

async function openTcpServer(t: Test, serve: (socket: Socket) => void) {
  const sockets = new Set<Socket>()
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    sockets.add(socket)
    socket.on('error', () => undefined)
    serve(socket)
  }).listen(0, host)
  await once(server, 'listening')
  const stop = async () => {
    server.close()
    for (const socket of sockets) socket.destroy()
    await Promise.resolve()
  }
  t.teardown(stop)
  return { target: targetOf(server), stop }
}

async function closedPorts(t: Test, count: number): Promise<readonly Target[]> {
  const targets: Target[] = []
  for (let number = 0; number < count; number++) {
    const server = await openTcpServer(t, () => undefined)
    await server.stop()
    targets.push(server.target)
  }
  return targets
}

/** An endpoint whose kernel does not answer new connections. */
async function openSilent(t: Test): Promise<Target> {
  const port = await openSilentPort(t)
  return { key: `${host}:${port}`, ip: host, port }
}

async function openUdpServer(t: Test, name: string, delay: Delay = 0, at = 0, answers = 1) {
  const socket = createSocket({ type: 'udp4', recvBufferSize: 1 << 20, sendBufferSize: 1 << 20 })
  socket.on('message', (datagram, from) => {
    const answer = () => {
      const bytes = Buffer.concat([datagram, Buffer.from(name)])
      for (let count = 0; count < answers; count++) socket.send(bytes, from.port, from.address)
    }
    const delayMs = typeof delay === 'number' ? delay : delay(datagram)
    if (delayMs > 0) setTimeout(answer, delayMs)
    else answer()
  })
  socket.bind(at, host)
  await once(socket, 'listening')
  const { port } = socket.address()
  let isOpen = true
  const stop = async () => {
    if (isOpen) await once(socket.close(), 'close')
    isOpen = false
  }
  t.teardown(stop)
  return { target: { key: `${host}:${port}`, ip: host, port }, stop }
}

async function openUdpClient(t: Test, port: number) {
  const socket = createSocket({ type: 'udp4', recvBufferSize: 1 << 20, sendBufferSize: 1 << 20 })
  socket.bind(0, host)
  await once(socket, 'listening')
  t.teardown(() => void socket.close())
  let count = 0
  socket.on('message', () => count++)
  const repliesFrom = new Set<string>()
  const ask = async (datagram: Buffer): Promise<Buffer> => {
    const reply = once(socket, 'message')
    socket.send(datagram, port, host)
    const [data, from] = (await reply) as [Buffer, { address: string; port: number }]
    repliesFrom.add(`${from.address}:${from.port}`)
    return data
  }
  return {
    ask,
    repliesFrom,
    count: () => count,
    name: async () => (await ask(Buffer.alloc(0))).toString(),
  }
}

/** The answer to a new client, or an empty text if its datagram is lost, as the proxy counts. */
async function nameOrLoss(
  t: Test,
  { port, path }: Pick<Awaited<ReturnType<typeof openBench>>, 'port' | 'path'>,
): Promise<string> {
  const { name } = await openUdpClient(t, port)
  let answer: string | undefined
  void name().then((text) => (answer = text))
  let lost = 0
  const isLost = () => (lost += sum(path.takeCounts()[0], 'dialErrors')) > 0
  await untilTrue(() => answer !== undefined || isLost())
  return answer ?? ''
}

function dial(port: number): Socket {
  return connect({ host, port, allowHalfOpen: true })
}

/** Opens a connection, asks for the name of the endpoint, and closes it. */
async function ask(port: number): Promise<string> {
  const socket = dial(port)
  socket.write('name?')
  const [name] = (await once(socket, 'data')) as [Buffer]
  socket.end()
  await once(socket, 'end')
  return name.toString()
}

async function readAll(socket: Socket): Promise<Buffer> {
  const chunks: Buffer[] = []
  socket.on('data', (chunk: Buffer) => chunks.push(chunk))
  socket.resume()
  await once(socket, 'end')
  return Buffer.concat(chunks)
}

async function errorOf(socket: Socket): Promise<string> {
  socket.resume()
  return new Promise((resolve) => {
    socket.once('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? ''))
    socket.once('end', () => {
      // libuv reports a reset after the last bytes as an end. Only the next write fails.
      socket.write('', (error) =>
        resolve(error && 'code' in error ? String(error.code) : 'orderly end'),
      )
    })
  })
}

/**
 * For each established socket with these ports: the seconds until keep-alive asks the peer, or
 * undefined without keep-alive.
 */
function keepAliveSeconds(
  isOurs: (ports: { readonly local: number; readonly remote: number }) => boolean,
) {
  const portOf = (address = '') => parseInt(address.split(':')[1] ?? '', 16)
  return readFileSync('/proc/net/tcp', 'utf8')
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .filter(
      ([, local, remote, state]) =>
        state === '01' && isOurs({ local: portOf(local), remote: portOf(remote) }),
    )
    .map(([, , , , , timer = '']) => {
      const [kind, left = ''] = timer.split(':')
      return kind === '02' ? parseInt(left, 16) / 100 : undefined
    })
}

function inFlight(socket: Socket, size: number): number {
  return size - (socket.bytesWritten - socket.writableLength)
}

function targetOf(server: Server): Target {
  const address = server.address()
  const port = typeof address === 'object' && address ? address.port : 0
  return { key: `${host}:${port}`, ip: host, port }
}

function sum(
  counts: ListenerCounts | undefined,
  field: 'connections' | 'dialErrors' | 'bytesToEndpoint' | 'bytesToClient',
): number {
  return (counts?.endpoints ?? []).reduce((total, endpoint) => total + endpoint[field], 0)
}

t.test('US46: an endpoint that answers in time is used, even if the thread was busy', async (t) => {
  const server = createServer((socket) => socket.destroy())
  await new Promise<void>((listening) => server.listen(0, '127.0.0.1', listening))
  t.teardown(() => server.close())
  const address = server.address()
  const port = typeof address === 'object' ? (address?.port ?? 0) : 0
  const dialed = dialTcp({ key: 'endpoint', ip: '127.0.0.1', port }, 50)
  // After this the dial has begun. Its answer waits in the kernel while the thread is busy.
  await new Promise<void>((begun) => process.nextTick(begun))
  blockFor(200)
  const socket = await dialed
  t.not(socket, 'ETIMEDOUT')
  if (typeof socket !== 'string') socket.destroy()
})
