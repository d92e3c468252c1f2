import { createServer, type Server, type Socket } from 'node:net'
import { createServer as createHttp2 } from 'node:http2'
import { once } from 'node:events'
import t, { type Test } from 'tap'
import { endpointCheckOf } from '../../../lib/state/endpoint-check.js'
import { grpcAnswer } from '../../../lib/sources/health/grpc-answer.js'
import { httpAnswer } from '../../../lib/sources/health/outcome.js'
import { loadLibc } from '../../../lib/kernel/sockets/libc.js'
import { PolledProbes } from '../../../lib/sources/health/polled-probes.js'
import { probe } from '../../../lib/sources/health/probe.js'
import { blockFor } from '../../support/block.js'

const polled = new PolledProbes({
  libc: await loadLibc(),
  now: () => performance.now(),
  turnMs: 25,
  soon: (then) => void setTimeout(then, 25),
})

/** The result of a check in one line. Sockets of Node and polled ones must give the same. */
async function said(text: string, server: Server, timeout = '60s'): Promise<string> {
  const options = { 'health-check': text, 'health-check-timeout': timeout }
  const check = endpointCheckOf({ ...options, 'health-check-interval': '60s' }, 'TCP')
  const address = server.address()
  if (!check || typeof address !== 'object' || !address) throw new Error('nothing to check')
  const place = { ip: '127.0.0.1', port: address.port }
  const target = { id: '', namespace: '', ...place, check, reason: undefined }
  const ways = check.kind === 'grpc' ? [probe] : [probe, polled.probe.bind(polled)]
  const words = new Set<string>()
  for (const way of ways) {
    const outcome = await way(target)
    words.add(outcome.kind === 'good' ? 'good' : `${outcome.kind}: ${outcome.reason}`)
  }
  return [...words].join(', or ')
}

/** A server that does `act` with each connection, and what it has received so far. */
async function serving(t: Test, act: (socket: Socket) => void) {
  const sockets = new Set<Socket>()
  const server = createServer((socket) => {
    sockets.add(socket)
    socket.on('error', () => undefined)
    socket.once('close', () => sockets.delete(socket))
    act(socket)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  return server
}

t.test('a check by TCP asks for a connection only', async (t) => {
  const open = await serving(t, () => undefined)
  t.equal(await said('tcp', open), 'good')
  const closed = await serving(t, () => undefined)
  const address = closed.address()
  closed.close()
  await once(closed, 'close')
  closed.address = () => address
  t.equal(await said('tcp', closed), 'bad: connection refused')
})

t.test(
  'a check by HTTP reads the status; a redirect is an answer and is not followed',
  async (t) => {
    const requests: string[] = []
    const answering = (status: string) =>
      serving(t, (socket) => {
        socket.on('data', (bytes) => {
          requests.push(String(bytes))
          socket.write(`HTTP/1.1 ${status}\r\nLocation: http://127.0.0.1:1/\r\n\r\n`)
        })
      })
    t.equal(await said('http:/healthz?full=1', await answering('204 No Content')), 'good')
    t.match(requests.join(''), /^GET \/healthz\?full=1 HTTP\/1\.1\r\nHost: 127\.0\.0\.1:\d+\r\n/)
    t.equal(await said('http:/', await answering('302 Found')), 'good')
    t.equal(await said('http:/', await answering('503 Busy')), 'bad: answers with status 503')
    t.equal(await said('http:/', await answering('99 Odd')), 'bad: answers, but not in HTTP/1')
    const interim = '100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1'
    t.equal(await said('http:/', await answering(`${interim} 200 OK`)), 'good')
    const failed = await answering(`${interim} 500 Broken`)
    t.equal(await said('http:/', failed), 'bad: answers with status 500')
    const switched = await answering('101 Switching Protocols')
    t.equal(await said('http:/', switched), 'bad: answers with status 101')
  },
)

t.test('a server that speaks TLS, or sends for ever, costs one answer and no more', async (t) => {
  const alert = await serving(t, (socket) => socket.end(Buffer.from([0x15, 3, 1, 0, 2, 2, 0x32])))
  t.equal(await said('http:/', alert), 'bad: answers, but not in HTTP/1')
  let sent = 0
  let hasEnded: () => void = () => undefined
  const ended = new Promise<void>((resolve) => (hasEnded = resolve))
  const endless = await serving(t, (socket) => {
    const chunk = Buffer.alloc(1 << 16, 'x')
    const more = () => {
      while (!socket.destroyed && socket.write(chunk)) sent += chunk.length
    }
    socket.write('HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n')
    socket.on('drain', more)
    socket.once('close', hasEnded)
    more()
  })
  t.equal(await said('http:/', endless), 'good')
  await ended
  t.ok(sent < 1 << 27, 'the reset stops it')
  const line = await serving(t, (socket) => socket.write(`HTTP/1.1 ${'2'.repeat(1000)}`))
  t.equal(await said('http:/', line), 'bad: answers, but not in HTTP/1')
})

t.test(
  'an endpoint that says nothing fails after the time-out; one that closes, at once',
  async (t) => {
    const silent = await serving(t, () => undefined)
    t.equal(await said('http:/', silent, '100ms'), 'bad: no answer within 100 ms')
    t.equal(await said('grpc', silent, '100ms'), 'bad: no answer within 100 ms')
    const closing = await serving(t, (socket) => socket.resume().end())
    t.equal(await said('http:/', closing), 'bad: closed before an answer')
  },
)

t.test('time in which the thread is held up does not count against an endpoint', async (t) => {
  const server = createHttp2().on('stream', (stream) => {
    stream.respond({ ':status': 200, 'content-type': 'application/grpc' })
    stream.end(Buffer.from([0, 0, 0, 0, 2, 8, 1]))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => void server.close())
  const asked = said('grpc', server, '2s')
  setImmediate(() => {
    blockFor(3_000)
  })
  t.equal(await asked, 'good')
})

t.test('a check that begins beside others has all of its time', async (t) => {
  const silent = await serving(t, () => undefined)
  const check = endpointCheckOf(
    { 'health-check': 'http:/', 'health-check-timeout': '100ms' },
    'TCP',
  )
  const address = silent.address()
  if (!check || typeof address !== 'object' || !address) throw new Error('nothing to check')
  const place = { ip: '127.0.0.1', port: address.port }
  const target = { id: '', namespace: '', ...place, check, reason: undefined }
  const clock = { ms: 0 }
  const looks: (() => void)[] = []
  const probes = new PolledProbes({
    libc: await loadLibc(),
    now: () => clock.ms,
    turnMs: 50,
    soon: (then) => looks.push(then),
  })
  const look = (at: number) => {
    clock.ms = at
    looks.shift()?.()
    return new Promise((resolve) => setImmediate(resolve))
  }
  void probes.probe({ ...target, check: { ...check, timeoutMs: 1000 } })
  clock.ms = 45
  const ends: number[] = []
  void probes.probe(target).then(() => ends.push(clock.ms))
  for (const at of [50, 100, 150, 200]) await look(at)
  t.same(ends, [150], 'the first look after 100 ms')
  for (const at of [300, 400, 500, 600, 700, 800, 900, 1000]) await look(at)
  t.same(looks, [], 'nobody looks any more')
})

t.test('a check by gRPC asks for the state of the server', async (t) => {
  const answers: ((path: string) => Buffer | undefined)[] = []
  const server = createHttp2()
  server.on('stream', (stream, headers) => {
    const message = answers[0]?.(String(headers[':path']))
    const missing = { ':status': 200, 'content-type': 'application/grpc', 'grpc-status': '12' }
    if (!message) {
      stream.respond(missing, { endStream: true })
      return
    }
    stream.respond({ ':status': 200, 'content-type': 'application/grpc' })
    stream.end(message)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => void server.close())
  const asServer = server as unknown as Server
  const message = (...bytes: number[]) => Buffer.from([0, 0, 0, 0, bytes.length, ...bytes])
  answers[0] = (path) => (path === '/grpc.health.v1.Health/Check' ? message(8, 1) : undefined)
  t.equal(await said('grpc', asServer), 'good')
  answers[0] = () => message(8, 2)
  t.equal(await said('grpc', asServer), 'bad: says NOT_SERVING')
  answers[0] = () => undefined
  t.equal(await said('grpc', asServer), 'bad: answers with gRPC status 12')
  const other = await serving(t, (socket) => socket.write('HTTP/1.1 400 Bad Request\r\n\r\n'))
  t.equal(await said('grpc', other), 'bad: answers, but not in gRPC')
})

t.test('answers are judged as soon as they can be', async (t) => {
  t.equal(httpAnswer('HTTP/1.1 2'), undefined)
  t.equal(httpAnswer('HT'), undefined)
  t.match(httpAnswer('SSH-2.0'), { kind: 'bad' })
  t.match(httpAnswer('HTTP/1.0 200\r\n'), { kind: 'good' })
  const interim = 'HTTP/1.1 100 Continue\r\n\r\n'
  for (let length = 0; length <= interim.length; length++) {
    t.equal(httpAnswer(interim.slice(0, length)), undefined, 'the final answer follows')
  }
  t.match(httpAnswer('HTTP/1.1 100\n\nHTTP/1.1 200\n'), { kind: 'good' })
  t.match(httpAnswer(interim.repeat(20)), { kind: 'bad' }, 'not for ever')
  t.equal(grpcAnswer(Buffer.from([0, 0, 0, 0, 2, 8])), undefined)
  t.match(grpcAnswer(Buffer.from([0, 255, 255, 255, 255])), { kind: 'bad' })
  t.match(grpcAnswer(Buffer.from([0, 0, 0, 0, 0])), { kind: 'bad', reason: 'says UNKNOWN' })
})
