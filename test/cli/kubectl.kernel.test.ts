import t, { type Test } from 'tap'
import { connect, createServer } from 'node:net'
import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import { startProxy } from '../support/live-daemon.js'
import { commands } from '../support/documents.js'
import { enterPrivateNetns } from '../support/private-netns.js'
import { runUntilPrinted } from '../support/run-until-printed.js'
import { untilThere } from '../support/until.js'
import { installPlugin, putProxy } from './support/plugin.js'
import { noKubectl, startServer } from '../lab/apiserver/support/kubectl.js'
import type { ApiServer } from '../../lib/lab/apiserver/server.js'

/**
 * The real kubectl with the plug-in reaches a real proxy through the API server's proxy of pods.
 */

const skip = noKubectl === false ? (enterPrivateNetns() ?? false) : noKubectl
const nodeIp = '192.0.2.1'
if (skip === false) {
  execFileSync('ip', ['link', 'set', 'lo', 'up'])
  execFileSync('ip', ['address', 'add', `${nodeIp}/24`, 'dev', 'lo'])
  execFileSync('ip', ['route', 'add', 'default', 'dev', 'lo'])
  execFileSync('ip', ['address', 'add', '10.244.1.1/32', 'dev', 'lo'])
}

function putObjects(api: ApiServer): void {
  const port = { name: 'http', protocol: 'TCP', port: 80, targetPort: 8080 }
  const metadata = { name: 'web', namespace: 'default' }
  const clusterIP = '10.96.0.10'
  const spec = { type: 'ClusterIP', clusterIP, clusterIPs: [clusterIP], ports: [port] }
  api.put({ apiVersion: 'v1', kind: 'Service', metadata, spec })
  api.put({
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { ...metadata, name: 'web-1', labels: { 'kubernetes.io/service-name': 'web' } },
    addressType: 'IPv4',
    ports: [{ name: 'http', protocol: 'TCP', port: 8080 }],
    endpoints: [
      {
        addresses: ['10.244.1.1'],
        conditions: { ready: true },
        targetRef: { kind: 'Pod', name: 'web-0', namespace: 'default' },
      },
    ],
  })
  api.put({
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: 'node-1' },
    spec: { podCIDR: '10.244.1.0/24' },
    status: { addresses: [{ type: 'InternalIP', address: nodeIp }] },
  })
  putProxy(api, 'node-1', nodeIp)
  putClient(api)
}

/** Adds a pod on that node, the sender for `explain`. */
function putClient(api: ApiServer): void {
  api.put({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'client', namespace: 'default' },
    spec: { nodeName: 'node-1', containers: [{ name: 'client', image: 'x' }] },
    status: { phase: 'Running', podIP: '10.244.1.7', podIPs: [{ ip: '10.244.1.7' }] },
  })
}

async function startEndpoint(t: Test): Promise<void> {
  const server = createServer((socket) => socket.on('error', () => undefined).end('yes'))
  server.listen(8080, '10.244.1.1')
  await once(server, 'listening')
  t.teardown(() => new Promise((closed) => server.close(closed)))
}

/** Returns the address of the client. */
async function visit(): Promise<string> {
  const socket = connect(80, '10.96.0.10').resume()
  await once(socket, 'connect')
  const client = `${socket.localAddress}:${socket.localPort}`
  if (!socket.closed) await once(socket, 'close')
  return client
}

/** Visits now and then while something is done: without a pause the visits cost more than it. */
async function whileVisiting<T>(act: () => Promise<T>): Promise<T> {
  const stop = new AbortController()
  const visiting = (async () => {
    while (!stop.signal.aborted) {
      await visit()
      await delay(100)
    }
  })()
  try {
    return await act()
  } finally {
    stop.abort()
    await visiting
  }
}

/** The commands that documents show run in this cluster. */
async function runDocumented(t: Test): Promise<void> {
  const lines = commands.map(({ words }) => words.join(' '))
  const documented = new Set(lines.filter((line) => line.startsWith('kubectl svcproxy ')))
  t.ok(documented.size >= 9, `${documented.size} commands`)
  for (const line of documented) {
    // A busy machine needs more time than people have.
    const patience = line.includes(' trace ') ? ['--timeout', '600'] : []
    const words = [...line.split(' '), ...patience]
    const { code, stderr } = await runUntilPrinted(words, line.includes('--watch'))
    t.equal(code, 0, `${line}: ${stderr}`)
  }
}

t.test('explain, flows, top, trace, check and diff run via the API server', { skip }, async (t) => {
  const server = await startServer()
  t.teardown(() => server.stop())
  putObjects(server.api)
  await startEndpoint(t)
  const run = installPlugin(t, server.kubeconfig)
  const daemon = await startProxy(t, [
    ...['--kubeconfig', server.kubeconfig, '--hostname-override', 'node-1', '--flows'],
    ...['--proxy-mode', 'nftables', '--cluster-cidr', '10.244.0.0/16', '--flows-state-file='],
    ...['--metrics-bind-address', '0.0.0.0:10249'],
  ])
  let made = 0
  const latest: string[] = []
  const visits = async (count: number) => {
    for (const last = made + count; made < last; made++) latest.push(await visit())
    let top = await run('top')
    while (!top.stdout.includes(` ${made} `)) top = await run('top')
    return top
  }
  const linesOf = async () =>
    (await run('flows', 'svc/web', '-o', 'json')).stdout
      .split('\n')
      .filter((line) => line.includes('"event":"opened"'))
  // The first connections have no lines, because flows are reported only from a moment later.
  do await visits(1)
  while ((await linesOf()).length === 0)
  t.match(await visits(5), {
    code: 0,
    stderr: '',
    stdout: new RegExp(`^1 service port on 1 node\n.*\ndefault/web:http +\\d+ +${made} `, 's'),
  })
  const clients = latest.slice(-5)
  const lines = await untilThere('a line for each', async () => {
    const now = await linesOf()
    const ofThem = now.filter((line) => clients.some((each) => line.includes(`"${each}"`)))
    return ofThem.length >= clients.length ? ofThem : undefined
  })
  t.equal(lines.length, 5)
  t.match(lines.at(-1), '"endpointPod":"default/web-0"')

  const explained = await run('explain', 'svc/web', '--from', 'pod/client')
  t.equal(explained.code, 0, explained.stderr)
  t.match(
    explained.stderr,
    /^This is the plan of the proxy of node node-1\. Only the node can tell .* explain default\/web --from 10\.244\.1\.7`/,
  )
  t.match(
    explained.stdout,
    /^TCP from .*10\.244\.1\.7.* to 10\.96\.0\.10:80, .*default\/web:http, in nftables mode/,
  )
  t.match(explained.stdout, '10.244.1.1:8080')

  const traced = await whileVisiting(() => run('trace', 'svc/web', '--timeout', '600'))
  t.match(traced, {
    code: 0,
    stderr: /kubectl exec .* trace default\/web`/,
    stdout: /endpoint +default\/web-0 \(10\.244\.1\.1:8080\)\n +verdict +forwarded/,
  })

  await whileVisiting(() => runDocumented(t))
  t.match(await run('check'), { code: 0, stdout: /node-1 +proxy-node-1 +nftables +ok\n/ })
  t.match(await run('diff', '-o', 'wide'), { code: 0, stdout: /ok {5}foreign changes: none\n/ })
  await daemon.end('SIGTERM')
  t.match(await run('top'), { code: 1, stderr: /connection refused/ })
})
