import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer, type ServerResponse } from 'node:http'
import { connect, type LookupFunction } from 'node:net'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { ApiClient, longestSignOfLifeMs, type ApiRequest } from '../../lib/sources/api-client.js'
import { apiServerSource } from '../../lib/sources/api-server.js'
import { defaultTiming } from '../../lib/sources/list-watch-timing.js'
import { ObjectRequests } from '../../lib/sources/object-requests.js'
import { Silence } from '../../lib/sources/silence.js'
import { openCluster } from '../../lib/sources/cluster-access.js'
import { identityOf } from '../../lib/state/parse-object.js'
import { event, follow, listOf } from './support/scripted-server.js'
import { longestRetryAfterMs, parseRetryAfter } from '../../lib/sources/backoff.js'

import t, { type Test } from 'tap'
import { untilTrue } from '../support/until.js'
import { blockFor } from '../support/block.js'

void t.test('Retry-After is read as seconds or as a date, with a limit', async (t) => {
  const now = Date.parse('2026-01-01T00:00:00Z')
  for (const [header, ms] of [
    [undefined, 0],
    ['', 0],
    ['0', 0],
    ['7', 7000],
    [' 7 ', 7000],
    ['3600', longestRetryAfterMs],
    ['9999999', longestRetryAfterMs],
    ['9'.repeat(400), longestRetryAfterMs],
    ['-5', 0],
    ['1.5', 0],
    ['0x10', 0],
    ['NaN', 0],
    ['soon', 0],
    ['Thu, 01 Jan 2026 00:00:05 GMT', 5000],
    ['Wed, 31 Dec 2025 23:59:59 GMT', 0],
    ['Fri, 01 Jan 2027 00:00:00 GMT', longestRetryAfterMs],
  ] as const) {
    t.equal(parseRetryAfter(header, now), ms, String(header))
  }

  const server = createServer((_request, answer) => {
    answer.writeHead(503, { 'Retry-After': '9999999' }).end()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => server.close())
  const address = server.address()
  const port = typeof address === 'object' && address !== null ? address.port : 0
  const master = `http://127.0.0.1:${port}`
  const client = new ApiClient(await openCluster({ kubeconfig: '', master }), 'test')
  const limits = { headTimeoutMs: 300_000, idleTimeoutMs: 300_000 }
  const answer = await client.send({ path: '/', ...limits }, new AbortController().signal)
  t.match(answer, { ok: false, retryAfterMs: longestRetryAfterMs })
})

void t.test('a quiet watch stays open if the server answers, without a log line', async (t) => {
  const seen = await follow(
    t,
    { list: () => listOf('5', 'a'), watch: (answer) => answer.flushHeaders() },
    { askAfterMs: 2000, idleTimeoutMs: 1_000_000 },
  )
  await untilTrue(() => seen.others.length >= 4)
  t.ok(seen.others.every((path) => path === '/version'))
  t.strictSame(seen.watches, ['5'])
  t.equal(seen.lists.length, 1)
  t.strictSame(seen.failures, [])
})

void t.test(
  'a watch without bookmarks for too long is resumed, and nothing is logged',
  async (t) => {
    const seen = await follow(
      t,
      {
        list: () => listOf('5', 'a'),
        watch(answer, _version, number) {
          if (number < 3) answer.flushHeaders()
          else answer.write(event('ADDED', 'b', '6'))
        },
      },
      { askAfterMs: 2000, idleTimeoutMs: 4000 },
    )
    await untilTrue(() => seen.names.has('b'))
    t.strictSame(seen.watches.slice(0, 3), ['5', '5', '5'])
    t.equal(seen.synced(), 1)
    t.strictSame(seen.failures, [])
  },
)

void t.test('a watch is not silent because this thread was held up', async (t) => {
  const seen = await follow(
    t,
    { list: () => listOf('5', 'a'), watch: (answer) => answer.flushHeaders() },
    { askAfterMs: 500, idleTimeoutMs: 1_000, quietIdleTimeoutMs: 1_000 },
  )
  await untilTrue(() => seen.watches.length === 1)
  blockFor(1_500)
  await untilTrue(() => seen.others.length > 0)
  t.strictSame(seen.watches, ['5'], 'the server is asked first')
  t.strictSame(seen.failures, [])
})

for (const [what, begin] of [
  ['what a watch sends', (answer: ServerResponse) => answer.flushHeaders()],
  ['the whole answer to a watch', () => undefined],
] as const) {
  void t.test(`a proxy that holds back ${what} until its end delays changes`, async (t) => {
    const asked: number[] = []
    const seen = await follow(
      t,
      {
        list: () => listOf('5', 'a'),
        watch(answer) {
          const query = new URLSearchParams(answer.req.url)
          const ms = Number(query.get('timeoutSeconds')) * 1000
          asked.push(ms)
          // The server ends the watch before the client gives it up.
          if (ms < defaultTiming.askAfterMs) answer.end(event('ADDED', 'b', '6'))
          else begin(answer)
        },
      },
      { askAfterMs: 200, idleTimeoutMs: 500, headTimeoutMs: 500 },
      true,
    )
    await untilTrue(() => seen.names.has('b'))
    t.ok((asked[0] ?? 0) >= 300_000, 'only after a silent watch')
    t.equal(seen.synced(), 1)
  })
}

void t.test('watches are long again when one has sent something before its end', async (t) => {
  let now = 0
  const seconds: number[] = []
  const silence = new Silence('a watch', 'no byte', { ms: 1, isServerAlive: true })
  const event = Buffer.from('{}\n')
  const answers: (() => AsyncIterable<Buffer>)[] = [
    // eslint-disable-next-line require-yield
    async function* () {
      throw silence
    },
    async function* () {
      now += 20_000
      yield event
    },
    async function* () {
      yield event
      now += 20_000
    },
  ]
  const quiet = async function* () {}
  const requests = new ObjectRequests(
    { kind: 'Service', path: '/services' },
    {
      client: {
        server: 'x',
        movedTo: () => undefined,
        send: async ({ query }) => {
          seconds.push(Number(query?.['timeoutSeconds']))
          return { ok: true, what: 'it', body: (answers.shift() ?? quiet)() }
        },
      },
      random: () => 0,
      now: () => now,
      timing: defaultTiming,
    },
  )
  const watch = async () => {
    const lines: unknown[] = []
    for await (const line of requests.watch(new AbortController().signal, {})) lines.push(line)
    return lines
  }
  await t.rejects(watch(), silence)
  await watch()
  await watch()
  await watch()
  t.strictSame(seconds, [300, 14, 14, 300])
})

/** An API server in another process, so that a signal can stop it. */
async function serverProcess(t: Test) {
  const main = fileURLToPath(new URL('../../lib/main.js', import.meta.url))
  const child = spawn(process.execPath, [main, 'apiserver', '--listen', '127.0.0.1:0'], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  t.teardown(() => child.kill('SIGKILL'))
  for await (const line of createInterface(child.stdout)) {
    const url = /http:\/\/127\.0\.0\.1:\d+/.exec(line)?.[0]
    if (url !== undefined) return { child, url }
  }
  throw new Error('the server has not said where it listens')
}

void t.test(
  'a hanging server is reported, and nothing is listed again when it continues',
  async (t) => {
    const { child, url } = await serverProcess(t)
    const names = new Set<string>()
    const failures: string[] = []
    let synced = 0
    const stop = new AbortController()
    const client = new ApiClient(await openCluster({ kubeconfig: '', master: url }), 'test')
    let answers = 0
    client.onTry(() => answers++)
    const running = apiServerSource({
      client,
      nodeName: 'n',
      timing: { askAfterMs: 6000, idleTimeoutMs: 1_000_000, headTimeoutMs: 6000 },
    }).run(
      {
        upsert: (_kind, raw) => void names.add(identityOf(raw).name),
        remove: () => undefined,
        synced() {
          synced++
        },
        failed: (message) => void failures.push(message),
      },
      stop.signal,
    )
    t.teardown(async () => {
      stop.abort()
      await running
    })
    // Each of the four kinds is listed and watched.
    await untilTrue(() => synced === 4 && answers >= 8)
    child.kill('SIGSTOP')
    // The kernel still acknowledges everything, so only missing answers show that the server hangs.
    await untilTrue(() => failures.filter((text) => text.includes('no byte for')).length === 4)
    t.match(failures[0], 'the API server does not respond or cannot be reached')
    child.kill('SIGCONT')
    const answer = await fetch(`${url}/api/v1/namespaces/default/services`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({
        apiVersion: 'v1',
        kind: 'Service',
        metadata: { name: 'late' },
        spec: { ports: [{ port: 80 }] },
      }),
    })
    t.equal(answer.status, 201)
    await untilTrue(() => names.has('late'))
    t.equal(synced, 4, 'the watches are resumed')
  },
)

void t.test('a refusal whose body trickles in without an end is a refusal', async (t) => {
  const server = createServer((_, answer) => {
    answer.writeHead(500).write(' ')
    const timer = setInterval(() => answer.write(' '), 20)
    answer.on('close', () => clearInterval(timer))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  const address = server.address()
  const port = typeof address === 'object' && address !== null ? address.port : 0
  const master = `http://127.0.0.1:${port}`
  const client = new ApiClient(await openCluster({ kubeconfig: '', master }), 'test')
  const request = { path: '/', headTimeoutMs: 3000, idleTimeoutMs: 60_000 }
  const answer = await client.send(request, new AbortController().signal)
  t.match(answer, { ok: false, status: 500, message: 'Internal Server Error' })
})

void t.test('an accepted object whose answer trickles in holds nothing for long', async (t) => {
  const master = 'http://192.0.2.1'
  const client = new ApiClient(await openCluster({ kubeconfig: '', master }), 'test')
  let asked: ApiRequest | undefined
  client.send = (request) => {
    asked = request
    return Promise.reject(new Error('no server'))
  }
  await t.rejects(client.create('/events', {}, new AbortController().signal), /no server/)
  t.equal(asked?.totalTimeoutMs, 10_000)
})

void t.test('an answer that came while this thread was held up is in time', async (t) => {
  const { child, url } = await serverProcess(t)
  const client = new ApiClient(await openCluster({ kubeconfig: '', master: url }), 'test')
  const ask = (headTimeoutMs: number) =>
    client.send(
      { path: '/version', headTimeoutMs, idleTimeoutMs: 300_000 },
      new AbortController().signal,
    )
  t.match(await ask(300_000), { ok: true })
  child.kill('SIGSTOP')
  // In the time that this thread is held up, the server answers also on a busy machine.
  const answer = ask(10_000)
  await delay(100)
  setImmediate(() => {
    child.kill('SIGCONT')
    blockFor(15_000)
  })
  t.match(await answer, { ok: true })
})

void t.test('a connection that is silent is given up no later than by kube-proxy', async (t) => {
  const master = 'http://192.0.2.1'
  const client = new ApiClient(await openCluster({ kubeconfig: '', master }), 'test')
  const asked = new Map<string, ApiRequest>()
  client.send = (request) => {
    asked.set(request.path, request)
    return Promise.reject(new Error('no server'))
  }
  const stop = new AbortController()
  const ignore = () => undefined
  const sink = { upsert: ignore, remove: ignore, synced: ignore, failed: ignore }
  const running = apiServerSource({ client, nodeName: 'n' }).run(sink, stop.signal)
  await untilTrue(() => asked.size === 4)
  stop.abort()
  await running
  const kubeProxyMs = 45_000
  const bookmarkMs = 60_000
  for (const [path, { askAfterMs = 0, idleTimeoutMs }] of asked) {
    const isUrgent = /services|endpointslices/.test(path)
    t.equal(idleTimeoutMs <= kubeProxyMs, isUrgent, path)
    t.equal(idleTimeoutMs > bookmarkMs, !isUrgent, `${path}: a quiet watch is not resumed for ever`)
    t.ok(askAfterMs + Math.min(longestSignOfLifeMs, askAfterMs / 2) <= kubeProxyMs, path)
  }
})

/** A server whose queue of new connections is full, so the kernel drops the next ones. */
async function fullServer(t: Test) {
  const program = `require('http').createServer((_, answer) => answer.end('{}'))
    .listen({ port: 0, host: '127.0.0.1', backlog: 1 }, function () { console.log(this.address().port) })`
  const child = spawn(process.execPath, ['-e', program], { stdio: ['ignore', 'pipe', 'inherit'] })
  t.teardown(() => child.kill('SIGKILL'))
  const [line] = (await once(createInterface(child.stdout), 'line')) as [string]
  const port = Number(line)
  child.kill('SIGSTOP')
  for (let n = 0; n < 2; n++) {
    const socket = connect(port, '127.0.0.1')
    t.teardown(() => socket.destroy())
    await once(socket, 'connect')
  }
  return { port, goOn: () => child.kill('SIGCONT') }
}

void t.test('a slow address of a name is not given up for one where nobody answers', async (t) => {
  const ask = async () => {
    const { port, goOn } = await fullServer(t)
    const lookup: LookupFunction = (_name, _options, answer) => {
      answer(
        null,
        ['127.0.0.1', '127.0.0.2'].map((address) => ({ address, family: 4 })),
      )
      // The first packet was dropped. The kernel sends it again after a second.
      setImmediate(goOn)
    }
    const access = {
      server: `http://api.test:${port}`,
      authority: undefined,
      credentials: () => Promise.resolve({ headers: {}, lookup }),
      forget: () => undefined,
      movedTo: () => undefined,
    }
    const limits = { headTimeoutMs: 60_000, idleTimeoutMs: 60_000 }
    const { signal } = new AbortController()
    return (await new ApiClient(access, 'test').send({ path: '/', ...limits }, signal)).ok
  }
  // A busy machine may look at the connection too late.
  t.ok(
    await ask()
      .catch(() => ask())
      .catch(() => ask()),
  )
})
