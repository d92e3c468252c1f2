import t, { type Test } from 'tap'
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { connect, createServer, type Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { apiVersion, kind } from '../../lib/config/file.js'
import { enterPrivateNetns } from '../support/private-netns.js'

/**
 * A running proxy takes over a changed configuration and a changed node, without a restart and
 * without a lost connection. Everything is in a network namespace of this test.
 */

const skip = enterPrivateNetns() ?? false
const ip = (text: string) => execFileSync('ip', text.split(' '))
if (skip === false) {
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
const main = fileURLToPath(new URL('../../lib/cli/main.js', import.meta.url))
const clusterIp = '10.96.0.10'
const nodePort = 30080

/** Answers every line with its own name. */
async function backend(t: Test, port: number): Promise<void> {
  const server = createServer((socket) => {
    socket.on('error', () => undefined)
    socket.on('data', () => socket.write(`${port}`))
  })
  server.listen(port, '0.0.0.0')
  await once(server, 'listening')
  t.teardown(() => server.close())
}

/** The first answer on a new connection, or why there is none. */
function ask(
  host: string,
  port: number,
): Promise<{ readonly answer: string; readonly socket: Socket }> {
  return new Promise((resolve) => {
    const socket = connect({ host, port })
    let isConnected = false
    socket.on('connect', () => (isConnected = true))
    const done = (answer: string) => {
      clearTimeout(timer)
      resolve({ answer, socket })
    }
    const timer = setTimeout(() => done(isConnected ? 'silence after connect' : 'silence'), 3000)
    socket.on('error', (error: NodeJS.ErrnoException) => done(error.code ?? 'error'))
    socket.on('close', () => done('closed'))
    socket.on('data', (data: Buffer) => done(data.toString()))
    socket.write('?')
  })
}

async function answerOf(host: string, port: number): Promise<string> {
  const { answer, socket } = await ask(host, port)
  socket.destroy()
  return answer
}

/** Connects to the Service without a pause; tells what was not answered. */
function probing() {
  const stop = new AbortController()
  const lost: string[] = []
  let count = 0
  const running = (async () => {
    while (!stop.signal.aborted) {
      const answer = await answerOf(clusterIp, 80)
      count++
      if (!/^808[01]$/.test(answer)) lost.push(`${new Date().toISOString()} ${answer}`)
      await delay(10)
    }
  })()
  return async () => {
    stop.abort()
    await running
    return { count, lost }
  }
}

async function until(what: string, seen: () => unknown, pattern: RegExp): Promise<void> {
  let last: unknown
  for (let tries = 0; tries < 1200; tries++) {
    last = await Promise.resolve(seen()).catch((error: unknown) => error)
    if (pattern.test(String(last))) return
    await delay(25)
  }
  throw new Error(`waited in vain for ${what}; last seen: ${String(last).slice(0, 2000)}`)
}

const page = async (path: string, port = 10249) =>
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
async function start(t: Test, mode: string, firstConfig: string) {
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
  const args = [main, '--config', file, '--manifests', join(folder, 'objects')]
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
    // The rules of kernel modes outlive their process, and would serve the next test.
    execFileSync(process.execPath, [main, 'cleanup'])
  }
  t.teardown(end)
  await until('readyz', () => page('/readyz', 10256), /"healthy": true/)
  await until('the Service', () => answerOf(clusterIp, 80), /^8080$/)
  const kept = await ask(clusterIp, 80)
  const stopProbing = probing()
  return {
    configure,
    file,
    remove: () => rmSync(file),
    /** Undefined: the node has no object. */
    setNode: (facts: Partial<NodeFacts> | undefined) =>
      write(join(folder, 'objects/all.json'), manifests(facts && { ...firstFacts, ...facts })),
    output: () => output,
    /** What the log says with this message, as objects. */
    said: (message: string) =>
      output
        .split('\n')
        .filter((line) => line.includes(message))
        .map((line) => JSON.parse(line) as Record<string, unknown>),
    /** Nothing was lost, and a connection from the beginning still works. */
    finish: async () => {
      const { count, lost } = await stopProbing()
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

const ruleset = () => execFileSync('nft', ['list', 'ruleset'], { encoding: 'utf8' })
const modes = ['nftables', 'iptables', 'userspace'] as const
const at = (address: string) => () => answerOf(address, nodePort)
const established = '/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established'

for (const mode of modes) {
  t.test(`${mode}: the configuration changes while connections go on`, { skip }, async (t) => {
    const proxy = await start(t, mode, 'nodePortAddresses: [192.0.2.1/32]\n')
    await until('the node port', at('192.0.2.1'), /^8080$/)
    t.not(await answerOf('192.0.2.2', nodePort), '8080')
    const live = [
      'nodePortAddresses: [192.0.2.2/32]',
      'detectLocalMode: ClusterCIDR',
      'clusterCIDR: 10.99.0.0/16',
      'conntrack: {tcpEstablishedTimeout: 1h30m}',
      'iptables: {masqueradeBit: 13, syncPeriod: 20s}',
      'nftables: {masqueradeBit: 13, syncPeriod: 20s}',
      'healthzBindAddress: 127.0.0.1:10257',
      'logging: {verbosity: 4}',
      '',
    ].join('\n')
    proxy.configure(live)
    await until('the other node port', at('192.0.2.2'), /^8080$/)
    await until('the old node port', at('192.0.2.1'), /REFUSED|silence|closed/)
    t.equal(readFileSync(established, 'utf8').trim(), '5400')
    await until('the new health port', () => page('/healthz', 10257), /healthy/)
    await t.rejects(page('/healthz', 10256), 'the old one is closed')
    t.match(JSON.parse(await page('/configz')), {
      'kubeproxy.config.k8s.io': { nodePortAddresses: ['192.0.2.2/32'] },
      origins: { clusterCIDR: `${proxy.file}:6` },
      waitingForRestart: {},
    })
    t.match(proxy.output(), /"level":"debug"/, 'the verbosity is live')
    if (mode !== 'userspace') {
      await until('the rules', ruleset, /10\.99\.0\.0\/16/)
      await until('another bit of the mark', ruleset, /0x0*2000/)
      await until('the end of the old one', ruleset, /^((?!0x0*4000\b).)*$/s)
      proxy.configure(live.replaceAll('masqueradeBit', 'masqueradeAll: true, masqueradeBit'))
      await until('rules that do not look at the client', ruleset, /^((?!10\.99\.0\.0).)*$/s)
    }

    proxy.configure(live.replace('masqueradeBit: 13', 'masqueradeBit: 99'))
    await until('the complaint', () => page('/healthz?verbose'), /\[-\]configuration: wrong, .*99/)
    t.match(await page('/metrics'), /kubeproxy_config_file_valid 0/)
    proxy.remove()
    await until('another', () => page('/healthz?verbose'), /\[-\]configuration: wrong, .*gone/)
    t.equal(await answerOf('192.0.2.2', nodePort), '8080', 'the last good one stays')

    const other = mode === 'userspace' ? 'iptables' : 'userspace'
    const waiting = `${live}bindAddress: 192.0.2.1\n`
    proxy.configure(waiting, other)
    await until(
      'what waits',
      () => page('/healthz?verbose'),
      /restart: bindAddress .*, mode from "\w+" to "\w+"/,
    )
    t.match(await page('/healthz?verbose'), /\[\+\]configuration: valid/)
    t.match(await page('/metrics'), /kubeproxy_config_keys_waiting_for_restart 2/)
    proxy.configure(`${waiting}oomScoreAdj: 100\n`, other)
    await until('one more value', () => page('/configz'), /"oomScoreAdj": 100/)
    const told = proxy.said('needs a restart').map(({ path, from, to }) => ({ path, from, to }))
    t.same(
      told.sort((a, b) => (String(a.path) < String(b.path) ? -1 : 1)),
      [
        { path: 'bindAddress', from: '0.0.0.0', to: '192.0.2.1' },
        { path: 'mode', from: mode, to: other },
      ],
      'each is said once',
    )
    t.equal(await page('/proxyMode'), mode, 'the old mode goes on')
    await proxy.finish()
  })

  t.test(`${mode}: the node changes while connections go on`, { skip }, async (t) => {
    const proxy = await start(t, mode, 'detectLocalMode: NodeCIDR\nnodePortAddresses: [primary]\n')
    t.teardown(() => execFileSync('ip', ['addr', 'flush', 'to', '192.0.2.3/32']))
    await until('the node port', at('192.0.2.1'), /^8080$/)

    proxy.setNode({ zone: 'b' })
    await until('the endpoint of the other zone', () => answerOf(clusterIp, 80), /^8081$/)
    proxy.setNode({ podCidr: '10.244.7.0/24' })
    await until('the endpoint of the zone', () => answerOf(clusterIp, 80), /^8080$/)
    if (mode !== 'userspace') {
      await until('the rules', ruleset, /10\.244\.7\.0\/24/)
      t.notMatch(ruleset(), /10\.244\.1\.0\/24/)
    }

    ip('addr add 192.0.2.3/24 dev v0')
    proxy.setNode({ address: '192.0.2.3' })
    await until('the node port at the new address', at('192.0.2.3'), /^8080$/)
    await until('the node port at the old one', at('192.0.2.1'), /REFUSED|silence|closed/)
    proxy.configure('detectLocalMode: NodeCIDR\nnodePortAddresses: [192.0.2.0/24]\n')
    await until('the old one again', at('192.0.2.1'), /^8080$/)
    ip('addr add 192.0.2.4/24 dev v0')
    await until('the node port at one more address', at('192.0.2.4'), /^8080$/)
    ip('addr del 192.0.2.4/24 dev v0')
    // Kubelet is late: the address of the object is not, or no longer, on an interface.
    proxy.setNode({ address: '192.0.2.77', zone: 'b' })
    await until('the zone', () => answerOf(clusterIp, 80), /^8081$/)
    ip('addr del 192.0.2.3/24 dev v0')
    // The node registers anew: for a moment it has no object, and then no pod CIDR yet.
    proxy.setNode(undefined)
    await until('the node port of then', () => answerOf('192.0.2.1', nodePort + 1), /^8081$/)
    t.equal(await answerOf(clusterIp, 80), '8081', 'the zone stays')
    proxy.setNode({ podCidr: '' })
    await until('the new zone', () => answerOf(clusterIp, 80), /^8080$/)
    if (mode !== 'userspace') t.match(ruleset(), /10\.244\.1\.0\/24/, 'the pod CIDR stays')
    await proxy.finish()
  })
}
