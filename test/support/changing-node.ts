import type { Test } from 'tap'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { renameSync, rmSync, writeFileSync } from 'node:fs'
import { connect, createServer, type Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { apiVersion, kind } from '../../lib/config/file.js'
import { program } from './program.js'
import { patienceMs, untilSeen, untilTrue } from './until.js'
import { execSync } from './run-sync.js'

/**
 * The proxy on a node that is the network namespace of this test. This process serves the endpoints
 * of one Service and connects to it all the time, while the files of the proxy change.
 */

export const clusterIp = '10.96.0.10'
export const nodePort = 30080

export const ip = (text: string) => execSync('ip', text.split(' '))

/** The interfaces of the node; 192.0.2.2 has the endpoints. */
export function setUpNode(): void {
  for (const command of [
    'link set lo up',
    'link add v0 type veth peer name v1',
    'link set v0 up',
    'link set v1 up',
    'addr add 192.0.2.1/24 dev v0',
    'addr add 192.0.2.2/24 dev v0',
    'route add default via 192.0.2.254 dev v0',
  ]) {
    ip(command)
  }
}

/**
 * A server that answers everything with its port. It ends its connections with the test: where the
 * rules are gone, the end of a client does not arrive, and the connection would keep this process.
 */
async function backend(t: Test, port: number): Promise<void> {
  const sockets = new Set<Socket>()
  const server = createServer((socket) => {
    sockets.add(socket)
    socket.on('close', () => sockets.delete(socket))
    socket.on('error', () => undefined)
    socket.on('data', () => socket.write(`${port}`))
  })
  server.listen(port, '0.0.0.0')
  await once(server, 'listening')
  t.teardown(() => {
    server.close()
    for (const socket of sockets) socket.destroy()
  })
}

/** No answer in this time is silence, where none may come. */
const silenceMs = 3_000

/** The first answer on a new connection, or the reason why there is none. */
function ask(
  host: string,
  port: number,
  withinMs = silenceMs,
  signal?: AbortSignal,
): Promise<{ readonly answer: string; readonly socket: Socket }> {
  return new Promise((resolve) => {
    const socket = connect({ host, port, ...(signal && { signal }) })
    let isConnected = false
    socket.on('connect', () => (isConnected = true))
    const done = (answer: string) => {
      clearTimeout(timer)
      resolve({ answer, socket })
    }
    const silence = () => done(isConnected ? 'silence after connect' : 'silence')
    const timer = setTimeout(silence, withinMs)
    socket.on('error', (error: NodeJS.ErrnoException) => done(error.code ?? 'error'))
    socket.on('close', () => done('closed'))
    socket.on('data', (data: Buffer) => done(data.toString()))
    socket.write('?')
  })
}

export async function answerOf(
  host: string,
  port: number,
  withinMs?: number,
  signal?: AbortSignal,
): Promise<string> {
  const { answer, socket } = await ask(host, port, withinMs, signal)
  socket.destroy()
  return answer
}

/** A connection that waits for longer is lost. */
const probeMs = 60_000

/** Connects to the Service all the time and keeps what was not answered. */
function probing() {
  const [stop, cut] = [new AbortController(), new AbortController()]
  const lost: string[] = []
  let count = 0
  const running = (async () => {
    while (!stop.signal.aborted) {
      const answer = await answerOf(clusterIp, 80, probeMs, cut.signal)
      count++
      if (!/^808[01]$/.test(answer)) lost.push(`${new Date().toISOString()} ${answer}`)
      await delay(25)
    }
  })()
  return {
    /** Waits until the connection of this moment has ended. */
    settled: async () => {
      const then = count
      await untilTrue(() => count >= then + 1)
    },
    end: async () => {
      stop.abort()
      await running
      return { count, lost }
    },
    /** The last connection may have met no rules, and would wait long. */
    cut: async () => {
      stop.abort()
      cut.abort()
      await running
    },
  }
}

export const page = async (path: string, port = 10249) =>
  (await fetch(`http://127.0.0.1:${port}${path}`)).text()

interface NodeFacts {
  readonly address: string
  readonly podCidr: string
  readonly zone: string
}

const firstFacts: NodeFacts = { address: '192.0.2.1', podCidr: '10.244.1.0/24', zone: 'a' }

function nodeManifest({ address, podCidr, zone }: NodeFacts) {
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: 'n1', labels: { 'topology.kubernetes.io/zone': zone } },
    spec: podCidr === '' ? {} : { podCIDR: podCidr, podCIDRs: [podCidr] },
    status: { addresses: [{ type: 'InternalIP', address }] },
  }
}

function manifests(node: NodeFacts | undefined): string {
  const slice = (name: string, port: number) => ({
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { name, namespace: 'd', labels: { 'kubernetes.io/service-name': 'web' } },
    addressType: 'IPv4',
    ports: [{ name: '', protocol: 'TCP', port }],
    endpoints: [
      { addresses: ['192.0.2.2'], conditions: { ready: true }, hints: { forZones: [{ name }] } },
    ],
  })
  const items = [
    ...(node ? [nodeManifest(node)] : []),
    {
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { name: 'web', namespace: 'd' },
      spec: {
        type: 'NodePort',
        clusterIP: clusterIp,
        clusterIPs: [clusterIp],
        ports: [
          { protocol: 'TCP', port: 80, targetPort: 8080, nodePort: node ? nodePort : nodePort + 1 },
        ],
      },
    },
    slice('a', 8080),
    slice('b', 8081),
  ]
  return JSON.stringify({ apiVersion: 'v1', kind: 'List', items })
}

/** The proxy with its files, and connections that must not break while they change. */
export async function startOnNode(t: Test, mode: string, firstConfig: string) {
  const folder = t.testdir({ objects: { 'all.json': manifests(firstFacts) } })
  const file = join(folder, 'kp.yaml')
  const write = (path: string, text: string) => {
    writeFileSync(`${path}.new`, text)
    renameSync(`${path}.new`, path)
  }
  const configure = (text: string, runs = mode) =>
    write(file, `apiVersion: ${apiVersion}\nkind: ${kind}\nmode: ${runs}\n${text}`)
  configure(firstConfig)
  await backend(t, 8080)
  await backend(t, 8081)
  const args = [program, '--config', file, '--manifests', join(folder, 'objects')]
  const child = spawn(process.execPath, [...args, '--hostname-override=n1'], {
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => (output += text))
  }
  const exited = once(child, 'exit')
  const end = async () => {
    if (child.exitCode === null) child.kill('SIGTERM')
    await exited
    // The rules of kernel modes outlive their process and would still serve in the next test.
    execSync('nft', ['flush', 'ruleset'])
  }
  t.teardown(end)
  const readyz = async () => (await fetch('http://127.0.0.1:10256/readyz')).status
  await untilSeen('readyz', readyz, /^200$/)
  // The kernel remembers for two minutes where a connection went before there were rules. A new
  // connection with the same port would go the same way.
  execSync('conntrack', ['-F'])
  await untilSeen('the Service', () => answerOf(clusterIp, 80), /^8080$/)
  const kept = await ask(clusterIp, 80, patienceMs)
  const probes = probing()
  return {
    configure,
    file,
    remove: () => rmSync(file),
    /** `undefined` removes the object of the node. */
    setNode: (facts: Partial<NodeFacts> | undefined) =>
      write(join(folder, 'objects/all.json'), manifests(facts && { ...firstFacts, ...facts })),
    output: () => output,
    /** The lines of the log with this message, as objects. */
    said: (message: string) =>
      output
        .split('\n')
        .filter((line) => line.includes(message))
        .map((line) => JSON.parse(line) as Record<string, unknown>),
    /** Waits for the connections made so far, so that their addresses may be removed. */
    settled: probes.settled,
    /** Ends the connections of a test that breaks them. */
    abandon: async () => {
      await probes.cut()
      kept.socket.destroy()
      await end()
    },
    /** Checks that nothing was lost and that the first connection still works. */
    finish: async () => {
      const { count, lost } = await probes.end()
      t.ok(count > 20, 'there were connections all the time')
      t.same(lost, [], 'none of them was lost')
      kept.socket.write('!')
      const [data] = (await once(kept.socket, 'data')) as [Buffer]
      t.equal(data.toString(), '8080', 'a connection from before still works')
      t.equal(child.exitCode, null, 'the process never ended')
      kept.socket.destroy()
      await end()
    },
  }
}
