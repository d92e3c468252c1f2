import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { EventEmitter, once } from 'node:events'
import t, { type Test } from 'tap'
import { installPlugin, pluginThread, putProxy } from './support/plugin.js'
import { FlowReader } from '../../lib/cli/kubectl/flow-reader.js'
import { findProxies } from '../../lib/cli/kubectl/proxies.js'
import { Kubectl, type ClusterFlags } from '../../lib/cli/kubectl/kubectl.js'
import { longestTimerMs } from '../../lib/async.js'
import type { CommandOutput } from '../../lib/kernel/command.js'
import { commandThread } from '../support/command-thread.js'
import { runCommand } from '../support/run-command.js'
import { programSkip } from '../support/netns.js'
import { noKubectl, startServer } from '../lab/apiserver/support/kubectl.js'
import type { ApiServer } from '../../lib/lab/apiserver/server.js'

/** `kubectl svcproxy` with proxies of several nodes. The test makes their answers. */

const skip = noKubectl

type Pages = Readonly<Record<string, string>>

const flow = (time: string, service: string, client: string) => ({
  ...{ time, event: 'opened', verdict: 'forwarded', why: '', protocol: 'TCP' },
  ...{ client, clientPod: '', service, address: '10.96.0.10:80' },
  ...{ endpoint: '10.244.1.1:8080', endpointPod: 'default/web-0' },
})

const metrics = (service: string, count: number) =>
  [
    `kubeproxy_service_connections_total{service="${service}",protocol="TCP",endpoint="10.244.1.1:8080"} ${count}`,
    `kubeproxy_service_active_connections{service="${service}",protocol="TCP"} 1`,
    '',
  ].join('\n')

const configz = (flows: boolean) =>
  JSON.stringify({
    'kubeproxy.config.k8s.io': {
      apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
      kind: 'KubeProxyConfiguration',
      mode: 'nftables',
      clusterCIDR: '10.244.0.0/16',
      flows: { enabled: flows },
    },
  })

const healthy = '[+]mode: nftables\n[+]IPv4 syncs: 3 syncs, 0 failed\n[+]foreign changes: none\n'

const pagesOf = (node: number): Pages => ({
  '/configz': configz(true),
  '/proxyMode': 'nftables',
  '/healthz': healthy,
  '/metrics': `${metrics('default/web:http', node)}${metrics('other/db:', 10)}`,
  '/flows': JSON.stringify({
    flows: [
      flow(`2026-01-01T00:00:0${3 - node}.000Z`, 'default/web:http', `10.244.${node}.9:4000`),
      flow('2026-01-01T00:00:09.000Z', 'other/db:', `10.244.${node}.9:4001`),
    ],
    next: 2,
    leftOut: node - 1,
  }),
})

let port = 0

/**
 * Starts a proxy's pages. Proxies have the same port on several loopback addresses, as on nodes.
 */
async function startPages(t: Test, ip: string, pages: Pages): Promise<void> {
  const server = createServer((request, reply) => {
    const page = pages[(request.url ?? '').split('?', 1)[0] ?? '']
    reply.writeHead(page === undefined ? 404 : 200).end(page ?? '404 page not found\n')
  })
  server.listen(port, ip)
  await once(server, 'listening')
  const address = server.address()
  if (typeof address === 'object' && address) port = address.port
  t.teardown(() => new Promise((closed) => server.close(closed)))
}

async function twoNodes(t: Test, second: Pages = pagesOf(2)) {
  const server = await startServer({ proxiesToLoopback: true })
  t.teardown(() => server.stop())
  port = 0
  await startPages(t, '127.0.0.2', pagesOf(1))
  await startPages(t, '127.0.0.3', second)
  putProxy(server.api, 'node-1', '127.0.0.2')
  putProxy(server.api, 'node-2', '127.0.0.3')
  installPlugin(t, server.kubeconfig)
  const run = (command: string, ...args: readonly string[]) =>
    pluginThread(command, `--port=${port}`, ...args)
  return { ...server, run }
}

void t.test('top sums over the nodes, in the namespace that is asked for', { skip }, async (t) => {
  const { run } = await twoNodes(t)
  const { stdout, stderr, code } = await run('top')
  t.same({ stderr, code }, { stderr: '', code: 0 })
  t.match(stdout, /^1 service port on 2 nodes\n/)
  t.match(stdout, /default\/web:http +2 +3 /)
  t.notMatch(stdout, 'other/db')
  t.match((await run('top', '-A')).stdout, /other\/db: +2 +20 /)
  t.match((await run('top', '-n', 'other')).stdout, /other\/db: +2 +20 /)
  t.match((await run('top', '-n=other')).stdout, /other\/db: +2 +20 /)
  t.equal((await run('top', '-A', '-o=name')).stdout, 'service/db\nservice/web\n')
  const one = await run('top', '--node', 'node-2', '-o', 'json')
  t.match(JSON.parse(one.stdout), { nodes: ['node-2'], services: [{ total: 2, open: 1 }] })
  t.match((await run('top', '-o', 'yaml')).stdout, /^nodes:\n {2}- node-1\n/)
})

void t.test(
  'top --watch leaves the busiest Services on the screen',
  { skip: skip || programSkip('script') },
  async (t) => {
    await twoNodes(t)
    const top = `kubectl svcproxy top -A --watch --port=${port}`
    const terminal = spawn('script', ['-qec', `stty rows 4 cols 80; exec ${top}`, '/dev/null'])
    let shown = ''
    let isStopped = false
    terminal.stdout.setEncoding('utf8').on('data', (text: string) => {
      shown += text
      if (isStopped || !/ERRORS\r\n.+\r\n/.test(shown)) return
      isStopped = true
      // Ctrl-C.
      terminal.stdin.write('\u0003')
    })
    await once(terminal, 'close')
    t.match(shown, /^2 service ports on 2 nodes\r\nSERVICE.*\r\n… and 2 more; a taller terminal/)
  },
)

void t.test('flows of all nodes stand in the order of time', { skip }, async (t) => {
  const { run } = await twoNodes(t)
  const { stdout, stderr } = await run('flows', '-o', 'json')
  const lines = stdout.trim().split('\n')
  t.same(
    lines.map((line) => (JSON.parse(line) as { readonly node: string }).node),
    ['node-2', 'node-1'],
  )
  t.equal(stderr, '… and 1 line that was left out under load\n')
  t.equal((await run('flows', '-A', '-o', 'json')).stdout.trim().split('\n').length, 4)
  t.equal((await run('flows', '-A', '-o', 'name')).stdout, 'service/web\nservice/db\n')
  const none = await run('flows', '-n', 'nowhere', '--node', 'node-1')
  t.match(none, { code: 0, stdout: /^TIME.*\n$/, stderr: 'no such connection so far\n' })
  const perhaps = await run('flows', '-n', 'nowhere')
  t.equal(perhaps.stderr, stderr, 'it may be among what was left out')
  const wide = (await run('flows', '-o', 'wide', '--node', 'node-1')).stdout
  t.match(wide, /^NODE +TIME .*\nnode-1 +2026-01-01T00:00:02\.000Z .*web-0 \(10\.244\.1\.1:8080\)/)
})

void t.test('flows from a pod are those from each of its addresses', { skip }, async (t) => {
  const server = await startServer({ proxiesToLoopback: true })
  t.teardown(() => server.stop())
  const asked: string[] = []
  // Connections that were refused at their sockets name no client.
  const flows = [1, 2].map((n) => flow(`2026-01-01T00:00:0${n}.000Z`, 'default/web:http', ''))
  const proxy = createServer(({ url = '' }, answer) => {
    asked.push(new URL(url, 'http://proxy').searchParams.get('from') ?? '')
    answer.end(JSON.stringify({ flows, next: 1, leftOut: 0 }))
  })
  await once(proxy.listen(0, '127.0.0.2'), 'listening')
  t.teardown(() => proxy.close().closeAllConnections())
  const at = proxy.address()
  putProxy(server.api, 'node-1', '127.0.0.2')
  putDualStackClient(server.api)
  installPlugin(t, server.kubeconfig)
  const from = ['--from', 'pod/client', `--port=${typeof at === 'object' ? at?.port : ''}`]
  t.match(await pluginThread('flows', ...from), { code: 0 })
  const traced = await pluginThread('trace', 'web', '--count', '2', '--timeout', '600', ...from)
  t.match(traced.stdout, /00:01\.000Z TCP.*00:02\.000Z TCP/s, 'each is one')
  t.same(new Set(asked), new Set(['10.244.1.7,fd44::7']))
})

void t.test('trace shows no connection that began before', { skip }, async (t) => {
  const at = (second: number, event: string, durationMs?: number) => ({
    ...flow(`2026-01-01T00:00:0${second}.000Z`, 'default/web:http', `10.244.1.9:400${second}`),
    ...{ event, durationMs },
  })
  // Connection tracking reports the end of a connection two minutes after it.
  const flows = [at(1, 'ended', 120_000), at(2, 'ended', 1), at(3, 'opened')]
  const { run } = await twoNodes(t, {
    ...{ '/flows': JSON.stringify({ flows, next: 1, leftOut: 0 }) },
  })
  const traced = await run('trace', 'web', '--count', '2', '--timeout', '600', '--node', 'node-2')
  t.match(traced, { code: 0, stdout: /^2026-01-01T00:00:02.*\n2026-01-01T00:00:03.*/s })
})

void t.test('a watch goes on while a proxy is restarted', { skip }, async (t) => {
  for (const [command, pages] of [
    ['top', { '/metrics': metrics('default/web:http', 7) }],
    ['flows', { '/flows': pagesOf(1)['/flows'] ?? '' }],
  ] as const) {
    const server = await startServer({ proxiesToLoopback: true })
    t.teardown(() => server.stop())
    let asked = 0
    const proxy = createServer(({ url = '' }, reply) => {
      const page: string | undefined = new Map(Object.entries(pages)).get(url.split('?')[0] ?? '')
      reply.writeHead(page !== undefined && ++asked !== 2 ? 200 : 503).end(page)
    }).listen(0, '127.0.0.2')
    await once(proxy, 'listening')
    t.teardown(() => proxy.close().closeAllConnections())
    const at = proxy.address()
    putProxy(server.api, 'node-1', '127.0.0.2')
    installPlugin(t, server.kubeconfig)
    const args = ['svcproxy', command, '-w', `--port=${typeof at === 'object' ? at?.port : ''}`]
    const watch = spawn('kubectl', [...args, ...(command === 'top' ? ['--interval=1'] : [])])
    t.teardown(() => watch.kill('SIGKILL'))
    let [shown, told] = ['', '']
    watch.stderr.setEncoding('utf8').on('data', (text: string) => (told += text))
    watch.stdout.setEncoding('utf8').on('data', (text: string) => {
      shown += text
      if (shown.split('default/web:http').length > 2) watch.kill('SIGINT')
    })
    await once(watch, 'close')
    t.match(told, /^node node-1: .*\/proxy\//, `${command} tells the failure`)
    t.match(shown, /default\/web:http.*default\/web:http/s, `${command} goes on`)
  }
})

/** Adds a pod with an address of each family. */
function putDualStackClient(api: ApiServer): void {
  const ips = ['10.244.1.7', 'fd44::7']
  api.put({
    ...{ apiVersion: 'v1', kind: 'Pod', metadata: { name: 'client', namespace: 'default' } },
    spec: { nodeName: 'node-1', containers: [{ name: 'client', image: 'x' }] },
    status: { phase: 'Running', podIP: ips[0], podIPs: ips.map((ip) => ({ ip })) },
  })
}

const childrenOf = (pid: number) =>
  readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').map(Number)

void t.test('Ctrl-C in the middle of a question is no failure', { skip }, async (t) => {
  const server = await startServer({ proxiesToLoopback: true })
  t.teardown(() => server.stop())
  const questions = new EventEmitter()
  const silent = createServer(() => questions.emit('asked'))
  await once(silent.listen(0, '127.0.0.2'), 'listening')
  t.teardown(() => silent.close().closeAllConnections())
  const at = silent.address()
  const on = typeof at === 'object' ? at?.port : undefined
  putProxy(server.api, 'node-1', '127.0.0.2')
  installPlugin(t, server.kubeconfig)
  const cases = ['flows', 'top'].flatMap((command) =>
    ['the group', 'kubectl first'].map((order) => ({ command, order })),
  )
  for (const { command, order } of cases) {
    const asked = once(questions, 'asked')
    const arguments_ = [command, '--watch', `--port=${on}`]
    // A terminal sends the signal to the whole group, which includes the kubectl that asks.
    const child = spawn('kubectl', ['svcproxy', ...arguments_], { detached: true })
    let stderr = ''
    child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text))
    const ended = once(child, 'close')
    await asked
    // A busy machine may tell the plug-in of the end of kubectl before the signal.
    if (order === 'kubectl first') process.kill(childrenOf(child.pid ?? NaN)[0] ?? NaN, 'SIGINT')
    else process.kill(-(child.pid ?? NaN), 'SIGINT')
    await ended
    t.same({ code: child.exitCode, stderr }, { code: 0, stderr: '' }, `${command}, ${order}`)
  }
})

void t.test(
  'a proxy that fails, or does not answer, is told and ends with 1',
  { skip },
  async (t) => {
    const failing = {
      ...pagesOf(2),
      '/healthz': '[+]mode: iptables\n[-]IPv4 syncs: 1 failed; no memory\n',
    }
    const { run, api } = await twoNodes(t, failing)
    const well = await run('check', '--node', 'node-1')
    t.same([well.code, well.stderr], [0, ''])
    t.match(well.stdout, /^NODE +POD +MODE +STATUS\nnode-1 +proxy-node-1 +nftables +ok\n$/)
    const { stdout, code } = await run('check')
    t.equal(code, 1)
    t.match(
      stdout,
      /node-2 +proxy-node-2 +iptables +FAILS\n {2}FAILS {2}IPv4 syncs: 1 failed; no memory\n/,
    )
    t.match((await run('check', '-o', 'wide')).stdout, /ok {5}foreign changes: none/)
    t.equal((await run('check', '-o', 'name')).stdout, 'pod/proxy-node-1\npod/proxy-node-2\n')
    const diff = await run('diff', '--node', 'node-1')
    t.equal(diff.code, 0)
    t.match(
      diff.stderr,
      /Only the node can tell every rule as it is now: `kubectl exec -n kube-system proxy-node-1 -- kube-proxy diff`/,
    )
    putProxy(api, 'node-3', '127.0.0.4')
    const third = await run('check')
    t.equal(third.code, 1)
    t.match(third.stdout, /node-1 .*ok\n/, 'the others are shown')
    t.match(
      third.stderr,
      /node node-3: .*connection refused.*; the API server reaches the proxy only if metricsBindAddress/i,
    )
  },
)

void t.test('an error says what is missing and what to do', { skip }, async (t) => {
  const silent = { '/configz': configz(false), '/proxyMode': 'nftables', '/metrics': '' }
  const { run, kubeconfig } = await twoNodes(t, silent)
  t.match(
    (await run('top', '--node', 'node-2')).stderr,
    /node node-2 counts no connections in nftables mode; start it with --flows/,
  )
  const flows = await run('flows', '--node', 'node-2')
  t.equal(flows.code, 1)
  t.match(flows.stderr, /node node-2 does not follow connections; start it with --flows/)
  t.match(await run('top', '--node', 'node-9'), {
    code: 2,
    stderr: /no proxy on node "node-9"; .* node-1, node-2/,
  })
  t.match(await run('top', '-l', 'k8s-app=no'), {
    code: 2,
    stderr: /there is no pod with k8s-app=no/,
  })
  t.match(await run('top', '-o', 'text'), {
    code: 2,
    stderr: /Allowed choices are json, yaml, wide, name/,
  })
  t.match(await run('top', '--kubeconfig', `${kubeconfig}.none`), {
    code: 2,
    stderr: /none: no such file or directory\n$/,
  })
  for (const flag of ['context', 'cluster', 'user']) {
    const wrong = await run('check', `--${flag}=none`)
    t.match(wrong, { code: 2, stderr: /^error: .* "none" does not exist\n$/ }, flag)
  }
  // What needs the namespace of the context has another message of kubectl.
  t.match(await run('top', '--context=none'), { code: 2, stderr: /locate context none\n$/ })
  t.match(await run('check', '--request-timeout=soon'), { code: 2, stderr: /Invalid timeout/ })
  t.match(await run('check', '--as-group=x'), { code: 2, stderr: /without impersonating a user/ })
  t.match(await run('explain'), {
    code: 2,
    stderr: /'target'\nusage: kubectl svcproxy explain .*\n$/,
  })
  t.match(await run('--context=x', 'check'), {
    code: 2,
    stderr: /'--context=x'\nflags come behind the command, as in kubectl svcproxy check /,
  })
  t.match(await run('check', '--nope'), { code: 2, stderr: /\n.* check --help lists the flags\n$/ })
  t.match(await run('chek'), { code: 2, stderr: /the commands are explain, flows, top, / })
  t.match(await run('diff', 'web'), { code: 2, stderr: /\nusage: kubectl svcproxy diff .*\n$/ })
  t.match(await run('explain', 'svc/web', '--from', 'pod/none'), {
    code: 1,
    stderr: /pods "none" not found/,
  })
})

void t.test('of many nodes an error names some', { skip }, async (t) => {
  const { api, run } = await twoNodes(t)
  for (let n = 10; n < 20; n++) putProxy(api, `node-${n}`, '127.0.0.2')
  t.match(await run('check', '--node', 'wrong'), {
    code: 2,
    stderr: /are on node-1, node-10, .*node-18 and 2 more\n$/,
  })
})

void t.test('a pod that is gone is not told to follow connections', { skip }, async (t) => {
  const { api, kubeconfig } = await twoNodes(t)
  const place = { proxyNamespace: 'kube-system', selector: '', port: `${port}` }
  const proxies = await findProxies(new Kubectl({ kubeconfig }), place, 'node-2')
  const pod = { name: 'proxy-node-2', namespace: 'kube-system' }
  api.remove({ apiVersion: 'v1', kind: 'Pod', ...pod })
  const [asked] = await new FlowReader(new URLSearchParams()).read(proxies)
  t.match(asked, { error: /^node node-2: .*"proxy-node-2" not found$/ })
})

void t.test(
  'explain asks from the address of the pod that has the family of the Service',
  { skip },
  async (t) => {
    const { api, run } = await twoNodes(t)
    putDualStackClient(api)
    const put = (name: string, ...clusterIPs: string[]) =>
      api.put({
        ...{ apiVersion: 'v1', kind: 'Service', metadata: { name, namespace: 'default' } },
        spec: {
          ...{ clusterIP: clusterIPs[0], clusterIPs, ports: [{ port: 80, protocol: 'TCP' }] },
          ipFamilyPolicy: clusterIPs.length > 1 ? 'RequireDualStack' : 'SingleStack',
        },
      })
    put('six', 'fd00:10:96::6')
    put('dual', '10.96.0.7', 'fd00:10:96::7')
    const asked = async (target: string) => {
      const { stdout, stderr } = await run('explain', target, '--from', 'pod/client')
      return `${stderr}${stdout}`
    }
    t.match(await asked('svc/six'), / --from fd44::7`[^]*\(fd44::7\) to \[fd00:10:96::6\]:80/)
    t.match(await asked('[fd00:10:96::7]:80'), /\(fd44::7\) to \[fd00:10:96::7\]:80/)
    t.match(await asked('svc/dual'), / --from 10\.244\.1\.7`[^]*to 10\.96\.0\.7:80/)
  },
)

void t.test(
  'the caller needs the rights, and a refusal names the missing one',
  { skip },
  async (t) => {
    const server = await startServer({ accepts: (token) => token === 'good' })
    t.teardown(() => server.stop())
    const run = installPlugin(t, server.kubeconfig)
    const { code, stderr } = await run('check')
    t.equal(code, 1)
    t.match(stderr, /read \/api\/v1\/namespaces\/kube-system\/pods: .*(Unauthorized|logged in)/i)
  },
)

void t.test(
  'the proxy of pods does not lead to the machine of the API server',
  { skip },
  async (t) => {
    const server = await startServer()
    t.teardown(() => server.stop())
    putProxy(server.api, 'node-1', '127.0.0.1')
    putProxy(server.api, 'node-2', '169.254.169.254')
    const ask = (place: string) =>
      server.kubectl(`get --raw /api/v1/namespaces/kube-system/pods/${place}/proxy/x`)
    for (const node of ['node-1', 'node-2']) {
      t.match(await ask(`proxy-${node}:1`), { code: 1, stderr: /address not allowed/ }, node)
    }
    t.match(await ask('proxy-node-1:65536'), { code: 1, stderr: /invalid pod request/ })
  },
)

void t.test('in a pod the namespace is that of the pod, as for kubectl', { skip }, async (t) => {
  const environment = process.env
  t.teardown(() => (process.env = environment))
  process.env = { ...environment, KUBECONFIG: '/dev/null', POD_NAMESPACE: 'team' }
  t.equal(await new Kubectl({}).namespace(), 'team')
  process.env['POD_NAMESPACE'] = ''
  t.equal(await new Kubectl({}).namespace(), 'default')
})

void t.test('kubectl waits a minute for an answer, or as long as the caller says', async (t) => {
  const limitsWith = async (flags: ClusterFlags) => {
    let limits: readonly (string | number | undefined)[] = []
    const kubectl = new Kubectl(flags, (_file, args, options) => {
      limits = [args.find((arg) => arg.startsWith('--request-timeout')), options?.timeoutMs]
      return Promise.resolve({ code: 0, stdout: '', stderr: '' })
    })
    await kubectl.get('/api')
    return limits
  }
  t.same(await limitsWith({}), ['--request-timeout=60s', longestTimerMs])
  const given = { requestTimeout: '5m' }
  t.same(await limitsWith(given), ['--request-timeout=5m', longestTimerMs])
})

void t.test(
  'kubectl completes the commands, flags and values of the plug-in',
  { skip },
  async (t) => {
    installPlugin(t, '/dev/null')
    const answerOf = ({ stdout, stderr, code }: CommandOutput) => {
      t.equal(code, 0, stderr)
      const lines = stdout.trim().split('\n')
      return { words: lines.slice(0, -1).map((line) => line.split('\t')[0]), last: lines.at(-1) }
    }
    const byKubectl = async (...typed: readonly string[]) =>
      answerOf(await runCommand('kubectl', ['__complete', 'svcproxy', ...typed]))
    const program = commandThread('kubectl_complete-svcproxy')
    const ask = async (...typed: readonly string[]) => answerOf(await program(...typed))
    const commands = ['explain', 'flows', 'top', 'trace', 'check', 'diff', 'help']
    t.same((await byKubectl('')).words, commands)
    t.same((await byKubectl('top', '-o', '')).words, ['json', 'yaml', 'wide', 'name'])
    t.same(await byKubectl('top', '--kubeconfig', ''), { words: [], last: ':0' }, 'files')
    t.same(await ask('t'), { words: ['top', 'trace'], last: ':4' })
    t.same((await ask('flows', '--ver')).words, ['--verdict'])
    t.same((await ask('flows', '--verdict', 'no')).words, ['no-endpoints'])
    t.same((await ask('top', '--output=y')).words, ['--output=yaml'])
    t.same((await ask('top', '-A', '--sel')).words, ['--selector'])
    t.same((await ask('svc')).words, [])
  },
)
