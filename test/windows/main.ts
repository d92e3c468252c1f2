/** A client here tests the proxy on Node.js builds for other machines: `main.js [BUILD]...` */
import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { createServer, connect, type Socket } from 'node:net'
import { createSocket } from 'node:dgram'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import type { Frame } from '../../lib/page/view.js'
import { endpoint, rawService, rawSlice } from '../state/objects.js'
import { builds, Manifests, Started, type Build } from './subjects.js'

const node = '10.0.0.1'
const pods = ['10.180.0.1', '10.180.0.2', '10.180.0.3'] as const
const deadPod = '10.180.0.9'
const virtual = {
  tcp: '10.96.0.10',
  udp: '10.96.0.11',
  sticky: '10.96.0.12',
  external: '198.51.100.10',
}
const patienceMs = 60_000

/** A pod that sends its address, and then everything that it gets. */
async function startPod(ip: string): Promise<void> {
  const server = createServer((socket) => {
    socket.on('error', () => undefined)
    socket.write(`${ip}\n`)
    socket.pipe(socket)
  })
  server.unref().listen(8080, ip)
  await once(server, 'listening')
  const datagrams = createSocket('udp4').unref()
  datagrams.on('message', (text, { address, port }) => {
    datagrams.send(`${ip} ${String(text)}`, port, address)
  })
  datagrams.bind(8080, ip)
  await once(datagrams, 'listening')
}

interface Offered {
  readonly name: string
  readonly clusterIP: string
  readonly protocol?: 'TCP' | 'UDP'
  readonly endpoints?: readonly string[]
  readonly spec?: object
}

function objectsOf({ name, clusterIP, protocol = 'TCP', endpoints = pods, spec }: Offered) {
  const nodePort = spec && 'nodePort' in spec ? { nodePort: spec.nodePort } : {}
  const port = { name: 'p', protocol, port: 80, targetPort: 8080, ...nodePort }
  const service = { clusterIP, clusterIPs: [clusterIP], ports: [port], ...spec }
  return [
    rawService({ name, spec: service }),
    rawSlice({
      name: `${name}-1`,
      service: name,
      ports: [{ name: 'p', protocol, port: 8080 }],
      endpoints: endpoints.map((ip) => endpoint(ip)),
    }),
  ]
}

const web = { name: 'web', clusterIP: virtual.tcp, spec: { type: 'NodePort', nodePort: 30_080 } }
const dns = {
  name: 'dns',
  clusterIP: virtual.udp,
  protocol: 'UDP',
  spec: { type: 'NodePort', nodePort: 30_053 },
} as const
const sticky = {
  ...{ name: 'sticky', clusterIP: virtual.sticky },
  spec: { sessionAffinity: 'ClientIP', externalIPs: [virtual.external] },
}
const half = { name: 'half', clusterIP: '10.96.0.13', endpoints: [deadPod, pods[1]] }
const empty = { name: 'empty', clusterIP: '10.96.0.14', endpoints: [] }

const withAddresses = [
  ...['--proxy-mode=userspace', '--userspace-portals=addresses', '--userspace-datapath=net'],
  '--takeover-folder=',
]

const proxyFlags: Readonly<Record<Build, readonly string[]>> = {
  Windows: ['--proxy-mode=userspace', '--windows-interface=Ethernet'],
  Linux: withAddresses,
  arm64: withAddresses,
}

async function runCases(t: Test, build: Build): Promise<void> {
  const manifests = new Manifests(build)
  const all = [web, dns, sticky, half, empty]
  manifests.write(all.flatMap(objectsOf))
  const proxy = new Started(build, 'cli/main.js', [
    ...proxyFlags[build],
    ...['--proxy-mode-fallback=none', '--manifests', manifests.path, '--bind-address', node],
    ...['--hostname-override=node-1', '--cluster-cidr=10.180.0.0/16', '--logging-format=json'],
    ...['--metrics-bind-address=127.0.0.1:10249', '--healthz-bind-address=127.0.0.1:10256'],
    '--feature-gates=AllowServiceExternalIPs=true',
  ])
  try {
    await until('the first answer', async () => (await ask(virtual.tcp)) !== 'refused', proxy)
    await servesTcp(t)
    await servesUdp(t)
    await servesNodePorts(t)
    await keepsClients(t)
    await skipsDead(t)
    await answersOperators(t, build)
    await drains(t, manifests, proxy)
    await stops(t, proxy)
    t.notMatch(proxy.output, /"level":(50|60|"error")/, 'the log has no error')
  } catch (error) {
    t.comment(proxy.output)
    throw error
  } finally {
    await proxy.kill()
  }
  await commandsRun(t, build)
  // An image contains only what a node runs, so it has no API server.
  if (build !== 'arm64') await servesApi(t, build)
  if (build === 'Windows') await plays(t)
}

async function servesTcp(t: Test): Promise<void> {
  const answers = await Promise.all(Array.from({ length: 9 }, () => ask(virtual.tcp)))
  t.same([...new Set(answers)].sort(), pods, 'US40: TCP goes to all endpoints')
  for (const pod of pods) t.equal(answers.filter((one) => one === pod).length, 3, 'in turn')
  const bytes = Buffer.alloc(1 << 18, 'x')
  t.equal(await echoed(virtual.tcp, bytes), bytes.length, 'every byte comes back')
  t.equal(await ask('10.96.0.14'), 'refused', 'S19: without endpoints it is refused')
  t.equal(await ask(virtual.tcp, 81), 'refused', 'another port is refused')
}

async function servesUdp(t: Test): Promise<void> {
  t.match(await askUdp(virtual.udp, 80), /^10\.180\.0\.[123] hello from 10\.96\.0\.11$/)
  const answers = await Promise.all(Array.from({ length: 6 }, () => askUdp(virtual.udp, 80)))
  t.equal(
    new Set(answers.map((one) => one.split(' ')[0])).size,
    3,
    'UDP clients go to all endpoints',
  )
}

async function servesNodePorts(t: Test): Promise<void> {
  t.match(await ask(node, 30_080), /^10\.180/, 'WU02: a node port of TCP')
  t.match(await askUdp(node, 30_053), / from 10\.0\.0\.1$/, 'a node port of UDP')
  t.match(await ask(virtual.external), /^10\.180/, 'WU01: an external IP')
}

async function keepsClients(t: Test): Promise<void> {
  const answers = []
  for (let count = 0; count < 6; count++) answers.push(await ask(virtual.sticky))
  t.equal(new Set(answers).size, 1, 'WU05: affinity keeps a client at its endpoint')
  t.match(answers[0], /^10\.180/)
}

async function skipsDead(t: Test): Promise<void> {
  for (let count = 0; count < 3; count++) {
    t.equal(await ask('10.96.0.13'), pods[1], 'US43: a dead endpoint is passed over')
  }
}

async function answersOperators(t: Test, build: Build): Promise<void> {
  const get = async (address: string) => (await fetch(`http://${address}`)).text()
  t.match(await get('127.0.0.1:10256/healthz'), /lastUpdated/)
  const mode = build === 'Windows' ? 'winuserspace' : 'userspace'
  t.equal(await get('127.0.0.1:10249/proxyMode'), mode)
  const isCounted = async () =>
    /service_connections_total\{.*default\/web:p.*\} [1-9]/.test(
      await get('127.0.0.1:10249/metrics'),
    )
  await until('connections are counted', isCounted)
}

/** A Service is removed while a connection is open, and another one is added. */
async function drains(t: Test, manifests: Manifests, proxy: Started): Promise<void> {
  const open = connect(80, virtual.tcp)
  open.on('error', () => undefined)
  await once(open, 'data')
  const moved = { ...web, clusterIP: '10.96.0.14', endpoints: [pods[2]] }
  manifests.write([moved, dns, sticky, half].flatMap(objectsOf))
  await until(
    'the old address is refused',
    async () => (await ask(virtual.tcp)) === 'refused',
    proxy,
  )
  await until('the new address', async () => (await ask('10.96.0.14')) === pods[2], proxy)
  open.write('still here')
  const [heard] = (await once(open, 'data')) as [Buffer]
  t.equal(String(heard), 'still here', 'an open connection goes on')
  open.destroy()
}

/** After Ctrl-C new clients are refused, and an open connection may end by itself. */
async function stops(t: Test, proxy: Started): Promise<void> {
  const open = connect(80, virtual.sticky)
  open.on('error', () => undefined)
  await once(open, 'data')
  proxy.interrupt()
  await until('it takes no more', async () => (await ask(virtual.sticky)) === 'refused')
  open.write('still here')
  const [heard] = (await once(open, 'data')) as [Buffer]
  t.equal(String(heard), 'still here', 'an open connection goes on while the proxy stops')
  t.notOk(proxy.hasEnded, 'the proxy waits for it')
  open.destroy()
  t.equal(await proxy.ended(), 0, 'and ends when it has ended')
}

async function servesApi(t: Test, build: Build): Promise<void> {
  const url = 'http://127.0.0.1:18001'
  const server = new Started(build, 'main.js', ['apiserver', '--listen', '127.0.0.1:18001'])
  try {
    const serves = () =>
      Promise.resolve(server.output.includes(`serving the Kubernetes API at ${url}`))
    await until('the API', serves, server)
    const answer = await (await fetch(`${url}/version`)).text()
    t.match(answer, build === 'Windows' ? /"win32.x64"/ : /"linux./, 'the API server answers')
    server.interrupt()
    t.equal(await server.ended(), 0, 'Ctrl-C ends the API server')
  } finally {
    await server.kill()
  }
}

/** The playground without rights: its pods are programs of this machine, and the page works. */
async function plays(t: Test): Promise<void> {
  const playground = new Started('Windows', 'main.js', ['playground', '--port', '0'])
  const said = async (what: RegExp) => {
    await until(String(what), () => Promise.resolve(what.test(playground.output)), playground)
    return what.exec(playground.output)
  }
  try {
    const [, page = ''] = (await said(/Open (http:\S+) to try/)) ?? []
    t.match(await (await fetch(page)).text(), /<title>/, 'the page answers')
    await said(/Everything answered as it should/)
    const before = await requestsOf(page)
    const { status } = await fetch(new URL('command', page), {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ do: 'send', count: 1 }),
    })
    t.equal(status, 200, 'the page takes a command')
    await until('a request was answered', async () => (await requestsOf(page)) > before)
    playground.interrupt()
    t.equal(await playground.ended(), 0, 'Ctrl-C ends it')
  } catch (error) {
    t.comment(playground.output)
    throw error
  } finally {
    await playground.kill()
  }
}

/** How many requests have been answered, from the first frame of the page. */
async function requestsOf(page: string): Promise<number> {
  const gone = new AbortController()
  const { body } = await fetch(new URL('events', page), { signal: gone.signal })
  let text = ''
  try {
    for await (const part of body?.pipeThrough(new TextDecoderStream()) ?? []) {
      text += part
      const [, data] = /^data: (.*)\n\n/m.exec(text) ?? []
      if (data === undefined) continue
      const { answers = [] } = JSON.parse(data) as Frame
      return answers.reduce((sum, { count }) => sum + count, 0)
    }
    throw new Error(`the page sent no frame: ${text}`)
  } finally {
    gone.abort()
  }
}

/** Runs commands that change nothing. */
async function commandsRun(t: Test, build: Build): Promise<void> {
  const services = build === 'Linux' ? 'examples/services' : '/app/examples/services'
  for (const [args, pattern] of [
    [['--help'], /--windows-interface/],
    [['render', '--proxy-mode', 'nftables', '--manifests', services], /table ip kube-proxy/],
    [['explain', 'web', '--proxy-mode', 'iptables', '--manifests', services], /used .*10\.244/],
    [['check', '-o', 'json'], build === 'Windows' ? /this is win32/ : /this is linux/],
    [['cleanup'], /Cleaned up/],
  ] as const) {
    const command = new Started(build, 'cli/main.js', args)
    t.equal(await command.ended(), 0, args.join(' '))
    t.match(command.output, pattern, args.join(' '))
  }
  const refused = new Started(build, 'cli/main.js', ['--proxy-mode=kernelspace'])
  t.same([await refused.ended(), /winuserspace/.test(refused.output)], [2, true], 'kernelspace')
}

/** Connects and returns the endpoint that answers, or `refused`. */
function ask(host: string, port = 80): Promise<string> {
  return new Promise((resolve) => {
    const socket = connect(port, host)
    socket.setTimeout(20_000, () => end('silent'))
    const end = (answer: string) => {
      socket.destroy()
      resolve(answer)
    }
    socket.once('data', (text) => end(String(text).trim()))
    socket.on('error', () => end('refused'))
    socket.on('end', () => end('refused'))
  })
}

/** Sends bytes and returns how many come back after the line with the endpoint's address. */
async function echoed(host: string, bytes: Buffer): Promise<number> {
  const socket: Socket = connect(80, host)
  let heard = 0
  const first = (await once(socket, 'data')) as [Buffer]
  heard += first[0].length - String(first[0]).indexOf('\n') - 1
  socket.on('data', (part) => (heard += part.length))
  socket.end(bytes)
  await once(socket, 'end')
  return heard
}

/** Asks by UDP, again if a datagram is lost. Returns the answer and who sent it. */
async function askUdp(host: string, port: number): Promise<string> {
  const socket = createSocket('udp4')
  try {
    for (let tries = 0; tries < 20; tries++) {
      const heard = once(socket, 'message')
      socket.send('hello', port, host)
      const answer = await Promise.race([heard, sleep(1000, undefined)])
      if (!answer) continue
      const [text, from] = answer as [Buffer, { readonly address: string }]
      return `${String(text)} from ${from.address}`
    }
    return 'silent'
  } finally {
    socket.close()
  }
}

async function until(what: string, isSo: () => Promise<boolean>, proxy?: Started): Promise<void> {
  for (const start = performance.now(); !(await isSo());) {
    if (proxy?.hasEnded) throw new Error(`the proxy ended before ${what}`)
    if (performance.now() - start > patienceMs) throw new Error(`waited in vain for ${what}`)
    await sleep(100)
  }
}

for (const ip of [node, ...pods, ...Object.values(virtual), '10.96.0.13', '10.96.0.14']) {
  execFileSync('ip', ['address', 'add', `${ip}/32`, 'dev', 'lo'])
}
for (const pod of pods) await startPod(pod)
const asked = builds.filter((build) => process.argv.includes(build))
for (const build of asked) {
  t.test(`${build} build of Node.js`, { timeout: 240_000 }, (t) => runCases(t, build))
}
