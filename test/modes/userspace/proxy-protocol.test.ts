/** The PROXY header with each data path, as the parsers of HAProxy and nginx read it. */
import { spawn, spawnSync } from 'node:child_process'
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import {
  dataPathLoaders,
  type DataPath,
} from '../../../lib/modes/userspace/datapath/create-data-path.js'
import type { ListenerSpec, Target } from '../../../lib/modes/userspace/datapath/data-path.js'
import { DescriptorBudget } from '../../../lib/modes/userspace/datapath/descriptors.js'
import { encodeProxyHeader } from '../../../lib/modes/userspace/datapath/proxy-header.js'
import { hostPort } from '../../../lib/state/ip.js'
import { untilTrue } from '../../support/until.js'
import { freePort } from '../../support/free-port.js'

const asked = {
  IPv4: { ip: '10.96.0.10', port: 443 },
  IPv6: { ip: 'fd00:10:96::a', port: 443 },
} as const
const loopback = { IPv4: '127.0.0.1', IPv6: '::1' } as const
const families = ['IPv4', 'IPv6'] as const
const versions = [1, 2] as const

t.test('the bytes of the headers', (t) => {
  const text = (...args: Parameters<typeof encodeProxyHeader>) =>
    Buffer.from(encodeProxyHeader(...args)).toString('latin1')
  const client = { ip: '192.0.2.7', port: 4000 }
  t.equal(text(1, 'TCP', client, asked.IPv4), 'PROXY TCP4 192.0.2.7 10.96.0.10 4000 443\r\n')
  const client6 = { ip: '2001:db8::7', port: 4000 }
  t.equal(text(1, 'TCP', client6, asked.IPv6), 'PROXY TCP6 2001:db8::7 fd00:10:96::a 4000 443\r\n')
  const hex = (...args: Parameters<typeof encodeProxyHeader>) =>
    Buffer.from(encodeProxyHeader(...args)).toString('hex')
  const signature = '0d0a0d0a000d0a515549540a'
  t.equal(hex(2, 'TCP', client, asked.IPv4), `${signature}2111000cc00002070a60000a0fa001bb`)
  t.equal(hex(2, 'UDP', client, asked.IPv4), `${signature}2112000cc00002070a60000a0fa001bb`)
  t.equal(
    hex(2, 'UDP', client6, asked.IPv6),
    `${signature}2122002420010db8000000000000000000000007fd00001000960000000000000000000a0fa001bb`,
  )
  t.end()
})

for (const [name, load] of Object.entries(dataPathLoaders)) {
  t.test(`data path ${name}`, async (t) => {
    const create = await load()
    const bench = (t: Test, spec: Partial<ListenerSpec>) => openListener(t, create, spec)
    tests(t, bench)
  })
}

type Bench = (t: Test, spec: Partial<ListenerSpec>) => ReturnType<typeof openListener>

function tests(t: Test, bench: Bench): void {
  for (const parser of ['haproxy', 'nginx'] as const) {
    const isThere = spawnSync(parser, ['-v']).error === undefined
    const skip = isThere ? false : `needs ${parser}`
    t.test(`${parser} knows the client`, { skip }, async (t) => {
      for (const family of families) {
        const endpoint = await openHttp(t, parser, family)
        for (const version of versions) {
          const proxyHeader = { version, asked: asked[family] }
          const { port } = await bench(t, { ...at(family), endpoints: [endpoint], proxyHeader })
          const { body, client } = await get(loopback[family], port)
          t.equal(body, `${client} ${hostPort(asked[family].ip, 443)}`, `${family} v${version}`)
        }
      }
    })
  }

  t.test(
    'an endpoint that speaks first has the header first, and its bytes are not the client’s',
    async (t) => {
      const received: Buffer[] = []
      const endpoint = await openTcp(t, (socket) => {
        socket.write('220 hello')
        socket.on('data', (bytes) => received.push(bytes))
      })
      const proxyHeader = { version: 1, asked: asked.IPv4 } as const
      const { path, port } = await bench(t, { endpoints: [endpoint], proxyHeader })
      const client = connect({ host: '127.0.0.1', port })
      t.equal(String((await once(client, 'data'))[0]), '220 hello')
      const header = `PROXY TCP4 127.0.0.1 10.96.0.10 ${client.localPort} 443\r\n`
      await untilTrue(() => Buffer.concat(received).toString() === header)
      client.write('EHLO')
      await untilTrue(() => Buffer.concat(received).toString() === `${header}EHLO`)
      const [counts] = path.takeCounts()
      t.match(counts?.endpoints, [{ bytesToEndpoint: 4, bytesToClient: 9, headersRefused: 0 }])
      client.destroy()
    },
  )

  t.test('without rules the listener itself is what the client asked', async (t) => {
    const received: Buffer[] = []
    const endpoint = await openTcp(t, (socket) =>
      socket.on('data', (bytes) => received.push(bytes)),
    )
    const proxyHeader = { version: 1, asked: undefined } as const
    const { port } = await bench(t, { endpoints: [endpoint], proxyHeader })
    const client = connect({ host: '127.0.0.1', port })
    await once(client, 'connect')
    const header = `PROXY TCP4 127.0.0.1 127.0.0.1 ${client.localPort} ${port}\r\n`
    await untilTrue(() => Buffer.concat(received).toString() === header)
    client.destroy()
  })

  t.test('endpoints that end because of the header are counted, others are not', async (t) => {
    const ends: Readonly<Record<string, (socket: Socket) => void>> = {
      end: (socket) => socket.once('data', () => socket.end()),
      reset: (socket) => socket.once('data', () => socket.resetAndDestroy()),
      answer: (socket) => socket.once('data', () => socket.end('no')),
    }
    const proxyHeader = { version: 2, asked: asked.IPv4 } as const
    for (const [how, serve] of Object.entries(ends)) {
      const endpoint = await openTcp(t, serve)
      const { path, port } = await bench(t, { endpoints: [endpoint], proxyHeader })
      const client = connect({ host: '127.0.0.1', port })
        .on('error', () => undefined)
        .resume()
      await closed(client)
      const [counts] = await countsOf(path)
      t.match(
        counts?.endpoints,
        [{ connections: 1, headersRefused: how === 'answer' ? 0 : 1 }],
        how,
      )
    }
    // If the client ends or resets first, the endpoint did not end because of the header.
    const endpoint = await openTcp(t, (socket) => socket.resume().on('end', () => socket.end()))
    const { path, port } = await bench(t, { endpoints: [endpoint], proxyHeader })
    for (const leave of ['end', 'resetAndDestroy'] as const) {
      const client = connect({ host: '127.0.0.1', port })
        .on('error', () => undefined)
        .resume()
      await once(client, 'connect')
      client[leave]()
      await closed(client)
      const [counts] = await countsOf(path)
      t.match(counts?.endpoints, [{ connections: 1, headersRefused: 0 }], leave)
    }
  })

  t.test('the header comes and goes with the next connection', async (t) => {
    const endpoint = await openTcp(t, (socket) => socket.pipe(socket))
    const { path, spec, port } = await bench(t, { endpoints: [endpoint] })
    const first = async () => {
      const client = connect({ host: '127.0.0.1', port })
      client.write('x')
      const [bytes] = (await once(client, 'data')) as [Buffer]
      client.destroy()
      return bytes.toString('latin1')[0]
    }
    t.equal(await first(), 'x')
    const change = { removed: [], added: [], servingKeys: [], affinityMs: undefined }
    path.update(spec.key, { ...change, proxyHeader: { version: 1, asked: undefined } })
    t.equal(await first(), 'P')
    path.update(spec.key, { ...change, proxyHeader: undefined })
    t.equal(await first(), 'x')
  })

  t.test('each datagram has its header', async (t) => {
    for (const family of families) {
      const { endpoint, received } = await openUdp(t, family)
      const proxyHeader = { version: 2, asked: asked[family] } as const
      const spec = { ...at(family), protocol: 'UDP', endpoints: [endpoint], proxyHeader } as const
      const { path, port } = await bench(t, spec)
      const socket = createSocket(family === 'IPv4' ? 'udp4' : 'udp6')
      t.teardown(() => void socket.close())
      socket.bind(0, loopback[family])
      await once(socket, 'listening')
      const from = { ip: loopback[family], port: socket.address().port }
      const header = Buffer.from(encodeProxyHeader(2, 'UDP', from, asked[family]))
      const payloads = ['', 'one', 'y'.repeat(60_000)]
      for (const payload of payloads) {
        const reply = once(socket, 'message')
        socket.send(payload, port, loopback[family])
        t.equal(String((await reply)[0]), 'ok')
        t.ok(received.at(-1)?.equals(Buffer.concat([header, Buffer.from(payload)])), family)
      }
      // Several datagrams of one client at once are forwarded together.
      const before = received.length
      for (let number = 0; number < 20; number++) socket.send(`n${number}`, port, loopback[family])
      await untilTrue(() => received.length === before + 20)
      t.ok(
        received
          .slice(before)
          .every((datagram) => datagram.subarray(0, header.length).equals(header)),
      )
      t.match((await countsOf(path))[0]?.endpoints, [
        { connections: 1, bytesToEndpoint: 60_003 + 10 * 2 + 10 * 3 },
      ])
    }
  })
}

function at(family: 'IPv4' | 'IPv6'): Pick<ListenerSpec, 'address'> {
  return { address: loopback[family] }
}

type Create = Awaited<ReturnType<(typeof dataPathLoaders)['net']>>

async function openListener(t: Test, create: Create, options: Partial<ListenerSpec>) {
  const path = create({
    now: () => performance.now(),
    random: Math.random,
    descriptors: new DescriptorBudget(DescriptorBudget.allocate(200)),
    passiveHealth: false,
    accessLog: undefined,
    warn: () => undefined,
  })
  const spec: ListenerSpec = {
    key: 'IPv4 default/bench/TCP cluster',
    service: 'default/bench',
    protocol: 'TCP',
    address: '127.0.0.1',
    port: 0,
    endpoints: [],
    servingKeys: [],
    affinityMs: undefined,
    udpIdleMs: 60_000,
    ...options,
  }
  t.teardown(() => path.drain(0))
  return { path, spec, port: await path.open(spec) }
}

/** Waits for the counts of the next connection that has ended, or of datagrams. */
async function countsOf(path: DataPath) {
  for (;;) {
    const counts = path.takeCounts()
    if (counts.some(({ endpoints }) => endpoints.length > 0)) return counts
    await sleep(5)
  }
}

async function openTcp(t: Test, serve: (socket: Socket) => void): Promise<Target> {
  const sockets = new Set<Socket>()
  const server = createServer((socket) => {
    sockets.add(socket.on('error', () => undefined))
    serve(socket)
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  const { port } = server.address() as AddressInfo
  return { key: `127.0.0.1:${port}`, ip: '127.0.0.1', port }
}

async function openUdp(t: Test, family: 'IPv4' | 'IPv6') {
  const received: Buffer[] = []
  const socket = createSocket({
    type: family === 'IPv4' ? 'udp4' : 'udp6',
    recvBufferSize: 1 << 20,
  })
  socket.on('message', (datagram, from) => {
    received.push(datagram)
    socket.send('ok', from.port, from.address)
  })
  socket.bind(0, loopback[family])
  await once(socket, 'listening')
  t.teardown(() => void socket.close())
  const ip = loopback[family]
  const { port } = socket.address()
  return { endpoint: { key: hostPort(ip, port), ip, port }, received }
}

/** A server that answers with the client and the address that the header names. */
async function openHttp(t: Test, parser: 'haproxy' | 'nginx', family: 'IPv4' | 'IPv6') {
  const folder = mkdtempSync(join(tmpdir(), 'proxy-protocol-'))
  const port = await freePort(loopback[family])
  const place = hostPort(loopback[family], port)
  const file = join(folder, 'config')
  writeFileSync(file, configOf(parser, place, folder))
  const args =
    parser === 'haproxy' ? ['-db', '-f', file] : ['-p', folder, '-e', 'stderr', '-c', file]
  const child = spawn(parser, args, { stdio: 'ignore' })
  t.teardown(async () => {
    const ended = once(child, 'exit')
    child.kill()
    await ended
    rmSync(folder, { recursive: true })
  })
  await untilTrue(async () => child.exitCode !== null || (await answers(loopback[family], port)))
  return { key: place, ip: loopback[family], port }
}

function configOf(parser: 'haproxy' | 'nginx', place: string, folder: string): string {
  if (parser === 'haproxy') {
    const who = (name: string) => `%[${name}]:%[${name}_port]`
    return `defaults
  mode http
  timeout client 60s
  timeout connect 60s
  timeout server 60s
frontend test
  bind ${place} accept-proxy
  http-request return status 200 content-type text/plain lf-string "${who('src')} ${who('dst')}"
`
  }
  return `daemon off; master_process off; pid ${folder}/pid; error_log stderr;
events {}
http {
  access_log off; client_body_temp_path ${folder}/a; proxy_temp_path ${folder}/b;
  fastcgi_temp_path ${folder}/c; uwsgi_temp_path ${folder}/d; scgi_temp_path ${folder}/e;
  server {
    listen ${place} proxy_protocol;
    return 200 "$proxy_protocol_addr:$proxy_protocol_port $proxy_protocol_server_addr:$proxy_protocol_server_port";
  }
}
`
}

/**
 * Asks the server. Both parsers end a connection without a header, so an answer needs the header.
 */
async function get(host: string, port: number) {
  const socket = connect({ host, port })
  await once(socket, 'connect')
  const client = hostPort(host, socket.localPort ?? 0)
  socket.end('GET / HTTP/1.0\r\n\r\n')
  const chunks: Buffer[] = []
  socket.on('data', (chunk: Buffer) => chunks.push(chunk)).on('error', () => undefined)
  await closed(socket)
  const body = Buffer.concat(chunks).toString().split('\r\n\r\n')[1] ?? ''
  return { body: withBrackets(body.trim()), client }
}

/** Adds the brackets of IPv6 addresses, which the parsers leave out. */
function withBrackets(text: string): string {
  return text.replace(/(\S*:\S*):(\d+)/g, (_, ip: string, port: string) =>
    hostPort(ip, Number(port)),
  )
}

function answers(host: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host, port })
    socket.once('connect', () => resolve(true)).once('error', () => resolve(false))
    socket.once('connect', () => socket.destroy())
  })
}

/** Waits for the close. Unlike with `once`, an error before it is no failure. */
function closed(socket: Socket): Promise<void> {
  return new Promise((resolve) => socket.once('close', () => resolve()))
}
