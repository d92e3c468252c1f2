import t, { type Test } from 'tap'
import { request } from 'node:http'
import { connect, createServer } from 'node:net'
import { once } from 'node:events'
import { resolve } from 'node:path'
import { setImmediate as nextTurn } from 'node:timers/promises'
import type { Config } from '../../lib/config/config.js'
import { defaultConfig, configWith } from '../../lib/config/load.js'
import { RunningConfig } from '../../lib/config/running.js'
import { logEvents, type ProxyEvent } from '../../lib/observe/events.js'
import { Health } from '../../lib/observe/healthz.js'
import { close, listen, portOf, runHttpServer, text } from '../../lib/observe/http.js'
import { Observation } from '../../lib/observe/observation.js'
import { parseNode } from '../../lib/state/parse-node.js'
import { Tracker } from '../../lib/state/tracker.js'
import { createLogger } from '../../lib/observe/logger.js'
import { Metrics } from '../../lib/observe/metrics.js'
import { EndpointHealth } from '../../lib/observe/endpoint-health.js'
import { ModeStatus } from '../../lib/observe/mode-status.js'
import { healthPages, metricsPages, Slis } from '../../lib/observe/pages.js'
import { runServers } from '../../lib/observe/servers.js'
import { ServiceHealth, serviceAnswer } from '../../lib/observe/service-health.js'
import { freePort } from '../support/free-port.js'
import { plainNode } from '../state/objects.js'
import { untilTrue } from '../support/until.js'

function healthAt(start: number, options: { expectsNode?: boolean } = {}) {
  const clock = { now: start }
  const health = new Health({
    families: ['IPv4', 'IPv6'],
    timeoutMs: 60_000,
    expectsNode: options.expectsNode ?? false,
    date: () => clock.now,
    now: () => clock.now,
  })
  return { clock, health }
}

const start = Date.parse('2026-01-02T03:04:05Z')

t.test('H02: the body has lastUpdated, which is the current time while healthy', async (t) => {
  const { clock, health } = healthAt(start)
  health.synced('IPv4')
  clock.now += 1000
  t.same(health.healthz(), {
    code: 200,
    body: {
      lastUpdated: '2026-01-02T03:04:06.000Z',
      currentTime: '2026-01-02T03:04:06.000Z',
      healthy: true,
      nodeEligible: true,
      status: {
        IPv4: { lastUpdated: '2026-01-02T03:04:05.000Z', healthy: true },
        IPv6: { lastUpdated: '0001-01-01T00:00:00Z', healthy: true },
      },
    },
  })
})

t.test('H03: a clock that is set changes nothing about health', async (t) => {
  const clock = { now: 0, date: start }
  const health = new Health({
    families: ['IPv4'],
    timeoutMs: 60_000,
    expectsNode: false,
    date: () => clock.date,
    now: () => clock.now,
  })
  health.synced('IPv4')
  health.queued()
  clock.now += 1000
  clock.date += 5 * 3_600_000
  t.match(health.healthz(), {
    code: 200,
    body: { currentTime: '2026-01-02T08:04:05.000Z', lastUpdated: '2026-01-02T08:04:05.000Z' },
  })
  clock.date -= 10 * 3_600_000
  t.equal(health.livez().code, 200)
  clock.now += 60_000
  t.equal(health.livez().code, 503, 'it waits for a minute, whatever the date')
})

t.test('H03: the proxy is unhealthy if an update waits for 2 x syncPeriod', async (t) => {
  const { clock, health } = healthAt(start)
  health.queued()
  clock.now += 600_000
  t.equal(health.healthz().code, 200, 'a family that never synced is not judged')
  health.synced('IPv4')
  health.synced('IPv6')
  clock.now += 600_000
  t.equal(health.healthz().code, 200, 'nothing waits')
  health.queued()
  clock.now += 59_999
  health.queued()
  t.equal(health.livez().code, 200)
  clock.now += 1
  t.match(health.livez(), {
    code: 503,
    body: {
      healthy: false,
      lastUpdated: '2026-01-02T03:14:05.000Z',
      status: { IPv4: { healthy: false } },
    },
  })
  health.synced('IPv4')
  t.match(health.livez(), { code: 503, body: { status: { IPv4: { healthy: true } } } })
  health.synced('IPv6')
  t.equal(health.livez().code, 200)
})

t.test('H04, H05: a missing or leaving Node fails /healthz, not /livez', async (t) => {
  const { health } = healthAt(start, { expectsNode: true })
  const codes = () => [health.healthz().code, health.livez().code]
  t.same(codes(), [503, 200], 'the Node is unknown')
  health.setNode({ isBeingDeleted: false, isTaintedForDeletion: false })
  t.same(codes(), [200, 200])
  health.setNode({ isBeingDeleted: true, isTaintedForDeletion: false })
  t.same(codes(), [503, 200])
  health.setNode({ isBeingDeleted: false, isTaintedForDeletion: true })
  t.same(codes(), [503, 200])
  t.match(health.healthz().body, { healthy: false, nodeEligible: false })
  t.notOk('nodeEligible' in health.livez().body)
  health.setNode(undefined)
  t.same(codes(), [503, 200])
})

t.test('/readyz succeeds only after every IP family is synced once', async (t) => {
  const { health } = healthAt(start)
  t.equal(health.readyz().code, 503)
  health.synced('IPv4')
  t.equal(health.readyz().code, 503)
  health.synced('IPv6')
  t.equal(health.readyz().code, 200)
})

t.test('H01, H06: the health server answers, counts, and has no other pages', async (t) => {
  const { health } = healthAt(start, { expectsNode: true })
  const metrics = new Metrics({ mode: 'ipvs', process: false })
  const slis = new Slis()
  const server = await serving(t, healthPages(health, metrics, slis))
  const healthz = await server.get('/healthz?x=y')
  t.equal(healthz.status, 503)
  t.match(healthz.headers, {
    'content-type': 'application/json',
    'x-content-type-options': 'nosniff',
  })
  t.match(JSON.parse(healthz.body), { healthy: false, nodeEligible: false })
  t.equal((await server.get('/livez')).status, 200)
  t.equal((await server.get('/readyz')).status, 503)
  t.equal((await server.get('/metrics')).status, 404)
  t.equal((await server.get('/constructor')).status, 404)
  t.match(await server.get('/healthz', 'POST'), { status: 405, headers: { allow: 'GET' } })
  const { body } = await metrics.page()
  t.ok(body.includes('kubeproxy_proxy_healthz_total{code="503"} 1\n'), 'the POST does not count')
  t.ok(body.includes('kubeproxy_proxy_livez_total{code="200"} 1\n'))
  const page = (await slis.page()).body
  t.ok(page.includes('kubernetes_healthcheck{name="sync",type="livez"} 1\n'))
  t.ok(
    page.includes('kubernetes_healthchecks_total{name="sync",type="healthz",status="error"} 1\n'),
  )
})

t.test('H07, H08: the metrics server has its pages', async (t) => {
  const verbosity: number[] = []
  const page = (body: string) => () => Promise.resolve({ type: 'text/plain', body })
  const pages = {
    mode: 'nftables',
    metrics: page('m'),
    slis: page('s'),
    configz: () => ({ 'kubeproxy.config.k8s.io': { mode: '' } }),
    status: () => [
      { name: 'mode', isGood: true, text: 'nftables' },
      { name: 'IPv6 syncs', isGood: false, text: '3 syncs, 1 failed: \u001b[31m\n[+]x' },
    ],
    flagz: undefined,
    failingEndpoints: () => [],
    statusz: undefined,
  }
  const server = await serving(
    t,
    metricsPages({ ...pages, setVerbosity: () => (level) => verbosity.push(level) }),
  )
  const bodies = async (...paths: string[]) =>
    Promise.all(paths.map(async (path) => (await server.get(path)).body))
  t.same(await bodies('/proxyMode', '/healthz', '/metrics', '/metrics/slis'), [
    'nftables',
    'ok',
    'm',
    's',
  ])
  t.same(JSON.parse((await server.get('/configz')).body), pages.configz())
  t.equal(
    (await server.get('/healthz?verbose')).body,
    '[+]mode: nftables\n' +
      String.raw`[-]IPv6 syncs: 3 syncs, 1 failed: \u001b[31m\n[+]x` +
      '\nhealthz check passed\n',
    'a text stays on its line, without control characters',
  )
  t.same(JSON.parse((await server.get('/')).body), {
    paths: [
      '/',
      '/configz',
      '/failing-endpoints',
      '/healthz',
      '/metrics',
      '/metrics/slis',
      '/proxyMode',
    ],
  })
  t.equal((await server.get('/flagz')).status, 404, 'H09: only with its gate')
  t.equal((await server.get('/metrics', 'DELETE')).status, 405)
  t.match(await server.get('/metrics', 'HEAD'), { status: 200, body: '' })
  t.match(await server.get('/debug/flags/v', 'PUT', '6'), {
    status: 200,
    body: /successfully set verbosity to 6/,
  })
  t.equal((await server.get('/debug/flags/v', 'PUT', 'lots')).status, 400)
  t.equal((await server.get('/debug/flags/v')).status, 405)
  t.equal((await server.get('/debug/flags/v', 'PUT', '9'.repeat(9000))).status, 413)
  t.same(verbosity, [6])
  const plain = await serving(t, metricsPages({ ...pages, setVerbosity: () => undefined }))
  t.equal((await plain.get('/debug/flags/v', 'PUT', '6')).status, 404)
})

t.test(
  'L22: a port in use is tried again, or ends the process if the configuration says so',
  async (t) => {
    const taken = createServer().listen(0, '127.0.0.1')
    await new Promise((resolve) => taken.once('listening', resolve))
    const address = taken.address()
    const port = typeof address === 'object' && address ? address.port : 0
    const failures: string[] = []
    const stop = new AbortController()
    const options = {
      host: '127.0.0.1',
      port,
      handler: () => text('hello'),
      retryMs: 5000,
      failed: (message: string) => failures.push(message),
    }
    await t.rejects(
      runHttpServer({ ...options, failHard: true, sleep: () => Promise.resolve() }, stop.signal),
      { name: 'KernelError', message: /EADDRINUSE.*; free the port/ },
    )
    const slept: number[] = []
    let listening: () => void = () => undefined
    const opened = new Promise<void>((resolve) => (listening = resolve))
    const running = runHttpServer(
      {
        ...options,
        failHard: false,
        listening: () => listening(),
        sleep: async (ms) => {
          slept.push(ms)
          await new Promise((resolve) => taken.close(resolve))
        },
      },
      stop.signal,
    )
    await opened
    t.same(slept, [5000])
    t.match(failures, [/listen on 127\.0\.0\.1 port \d+: .*EADDRINUSE/, /EADDRINUSE/])
    t.equal((await get(port, '/')).body, 'hello')
    stop.abort()
    await running
    await t.rejects(get(port, '/'), { code: 'ECONNREFUSED' })
  },
)

t.test('H01: 0.0.0.0 means all addresses, of IPv6 as well', async (t) => {
  const stop = new AbortController()
  const port = await freePort()
  let listening: () => void = () => undefined
  const opened = new Promise<void>((resolve) => (listening = resolve))
  const running = runHttpServer(
    {
      host: '0.0.0.0',
      port,
      handler: () => text('hello'),
      failHard: true,
      retryMs: 5000,
      failed: () => undefined,
      listening: () => listening(),
      sleep: () => Promise.resolve(),
    },
    stop.signal,
  )
  await opened
  for (const host of ['127.0.0.1', '::1']) {
    t.equal((await get(port, '/', 'GET', '', host)).body, 'hello', host)
  }
  stop.abort()
  await running
})

t.test('H12: the health check of a Service answers with its local endpoints', async (t) => {
  const reply = serviceAnswer('n/s', 2, true)
  t.match(reply, { status: 200, headers: { 'X-Load-Balancing-Endpoint-Weight': '2' } })
  t.same(JSON.parse(reply.body), {
    service: { namespace: 'n', name: 's' },
    localEndpoints: 2,
    serviceProxyHealthy: true,
  })
  t.equal(serviceAnswer('n/s', 2, false).status, 503)
  t.equal(serviceAnswer('n/s', 0, true).status, 503)
})

t.test(
  'H11, H13: health-check ports follow the Services, and a port in use is reported once and tried again',
  async (t) => {
    const [one, two, three] = [await freePort(), await freePort(), await freePort()]
    const blocker = createServer().listen(two, '127.0.0.1')
    await new Promise((resolve) => blocker.once('listening', resolve))
    const failures: string[] = []
    const recovered: string[] = []
    let tick: () => void = () => undefined
    let healthy = true
    let slept: () => void = () => undefined
    const servers = new ServiceHealth({
      isHealthy: () => healthy,
      retryMs: 5000,
      failed: ({ name }, message) => failures.push(`${name}: ${message}`),
      recovered: ({ name }) => recovered.push(name),
      sleep: (_ms, signal, bell) =>
        new Promise((resolve) => {
          tick = resolve
          bell.onRing = resolve
          signal.addEventListener('abort', () => resolve())
          slept()
        }),
    })
    const asleep = () => new Promise<void>((resolve) => (slept = resolve))
    const target = (name: string, port: number, local: number) =>
      [`d/${name}`, { namespace: 'd', name, port, localEndpoints: { IPv4: local } }] as const
    servers.set(new Map([target('a', one, 1), target('b', two, 1)]), ['127.0.0.1'])
    const stop = new AbortController()
    const first = asleep()
    const running = servers.run(stop.signal)
    await first
    t.match(await get(one, '/any/path'), {
      status: 200,
      headers: { 'x-load-balancing-endpoint-weight': '1' },
    })
    t.match(failures, [/^b: .*EADDRINUSE/])
    healthy = false
    t.match(await get(one, '/'), { status: 503, body: /"serviceProxyHealthy": false/ })
    healthy = true
    const second = asleep()
    tick()
    await second
    t.equal(failures.length, 1, 'the same failure is not told again')
    await new Promise((resolve) => blocker.close(resolve))
    const third = asleep()
    servers.set(new Map([target('c', one, 0), target('b', two, 3), target('x', 1e9, 1)]), [
      '127.0.0.1',
    ])
    await third
    t.match(await get(two, '/'), { headers: { 'x-load-balancing-endpoint-weight': '3' } })
    t.match(await get(one, '/'), { status: 503, body: /"name": "c"/ }, 'a port changes hands')
    t.same(recovered, ['b'], 'only a port that had failed is told when it is open')
    t.match(failures[1], /^x: .*1000000000/, 'an absurd port fails like a taken one')
    servers.set(new Map([target('c', three, 1)]), ['127.0.0.1'])
    while (
      await get(one, '/').then(
        () => true,
        () => false,
      )
    );
    while (
      !(await get(three, '/').then(
        () => true,
        () => false,
      ))
    );
    stop.abort()
    await running
    await t.rejects(get(three, '/'), { code: 'ECONNREFUSED' }, 'L18: health ports close')
  },
)

t.test('H11: both IP families share one port, and unchanged ports stay open', async (t) => {
  const [one, two] = [await freePort(), await freePort()]
  let sleeps = 0
  const servers = new ServiceHealth({
    isHealthy: () => true,
    retryMs: 5000,
    failed: (_target, message) => t.fail(message),
    sleep: () => {
      sleeps++
      return Promise.resolve()
    },
  })
  const target = (name: string, port: number, IPv4: number) =>
    [`d/${name}`, { namespace: 'd', name, port, localEndpoints: { IPv4, IPv6: 1 } }] as const
  const everywhere = ['0.0.0.0', '::']
  servers.set(new Map([target('a', one, 1)]), everywhere)
  const stop = new AbortController()
  const running = servers.run(stop.signal)
  const answers = (port: number, host?: string) =>
    get(port, '/', 'GET', '', host).then(
      () => true,
      () => false,
    )
  while (!(await answers(one)));
  while (!(await answers(one, '::1')));
  const held = connect(one, '127.0.0.1')
  await once(held, 'connect')
  let isCut = false
  held.on('close', () => (isCut = true))
  servers.set(new Map([target('a', one, 5), target('b', two, 1)]), everywhere)
  while (!(await answers(two, '::1')));
  const weightAt = async (host: string) =>
    (await get(one, '/', 'GET', '', host)).headers['x-load-balancing-endpoint-weight']
  t.equal(await weightAt('127.0.0.1'), '5')
  t.equal(await weightAt('::1'), '1', 'E19: each family is told of its own endpoints')
  t.equal(isCut, false, 'a connection to a port that stays is not cut')
  const single = { namespace: 'd', name: 'a', port: one, localEndpoints: { IPv6: 2 } }
  servers.set(new Map([['d/a', single]]), everywhere)
  while (await answers(one));
  t.equal(await weightAt('::1'), '2', 'a Service of one family is answered for on that one')
  t.equal(sleeps, 0, 'with every port open there is nothing to wait for')
  stop.abort()
  await running
  t.equal(await answers(one), false)
})

t.test('H14, EV02, EV03: both servers start as configured, or are switched off', async (t) => {
  const events: ProxyEvent[] = []
  const port = await freePort()
  const lines: string[] = []
  const log = createLogger({
    format: 'json',
    verbosity: 0,
    isTerminal: false,
    write: (line) => void lines.push(line),
  })
  const { health } = healthAt(Date.now())
  const metrics = new Metrics({ mode: 'iptables', process: false })
  const ids = { name: 'n1', isBeingDeleted: false, isTaintedForDeletion: false }
  const node = { ...ids, ips: ['192.0.2.1'], podCidrs: ['10.244.1.0/24'], zone: 'a' }
  const options = {
    mode: 'iptables',
    nodeName: 'n1',
    version: 'v1',
    health,
    metrics,
    families: ['IPv4'] as const,
    tracker: { node },
    status: new ModeStatus({
      ...{ families: ['IPv4'], mode: 'iptables', fallback: '', meter: metrics, now: Date.now },
    }),
    log,
    events: { record: (event: ProxyEvent) => events.push(event) },
    endpoints: new EndpointHealth({
      ...{ log, meter: metrics, events: { record: () => undefined }, now: Date.now },
    }),
    startedAt: Date.now(),
  }
  const config = configWith({
    healthzBindAddress: '',
    metricsBindAddress: `127.0.0.1:${port}`,
    mode: 'iptables',
    featureGates: { ComponentFlagz: true, ComponentStatusz: true },
    manifests: 'services',
    'clientConnection.kubeconfig': '../kubeconfig',
    'ebpf.cgroup': '/sys/fs/cgroup/web',
  })
  const stop = new AbortController()
  const origins = new Map([['mode', { from: 'flag' as const, flag: 'proxy-mode' }]])
  const at = (config: Config) => ({ ...options, running: new RunningConfig({ config, origins }) })
  const running = runServers(at(config), stop.signal)
  while (
    !(await get(port, '/healthz').then(
      () => true,
      () => false,
    ))
  );
  const configz = JSON.parse((await get(port, '/configz')).body) as Record<string, unknown>
  t.match(configz, {
    'kubeproxy.config.k8s.io': { mode: 'iptables', iptables: { syncPeriod: '30s' } },
    origins: { mode: '--proxy-mode' },
    families: ['IPv4'],
  })
  t.same(parseNode(configz['node']), { outcome: 'accepted', value: node, warnings: [] })
  t.match(
    configz['kubeproxy.config.k8s.io'],
    {
      manifests: resolve('services'),
      clientConnection: { kubeconfig: resolve('../kubeconfig') },
      ebpf: { cgroup: '/sys/fs/cgroup/web', bpffs: '/sys/fs/bpf' },
      dashboardTokenFile: '',
    },
    'paths mean the same in every folder',
  )
  t.match((await get(port, '/flagz')).body, /\nproxy-mode=iptables\n/)
  t.match((await get(port, '/statusz')).body, /Mode: iptables/)
  t.match((await get(port, '/metrics')).body, /kubeproxy_sync_proxy_rules_iptables_total/)
  const hard = configWith({
    healthzBindAddress: `127.0.0.1:${port}`,
    metricsBindAddress: '',
    bindAddressHardFail: true,
  })
  await t.rejects(runServers(at(hard), stop.signal), { name: 'KernelError' })
  const hardMetrics = configWith({
    healthzBindAddress: '',
    metricsBindAddress: `127.0.0.1:${port}`,
    bindAddressHardFail: true,
  })
  await t.rejects(runServers(at(hardMetrics), stop.signal), {
    message: /EADDRINUSE/,
  })
  const about = { type: 'Warning', action: 'StartKubeProxy', note: /EADDRINUSE/ }
  const regarding = { kind: 'Node', name: 'n1' }
  t.match(
    events,
    [
      { ...about, reason: 'FailedToStartProxierHealthcheck', regarding },
      { ...about, reason: 'FailedToStartMetricServer', regarding },
    ],
    'EV02, EV03',
  )
  // The port becomes free, and is tried again.
  const later = new AbortController()
  const soft = configWith({ healthzBindAddress: `127.0.0.1:${port}`, metricsBindAddress: '' })
  lines.length = 0
  const waiting = runServers(at(soft), later.signal)
  await untilTrue(() => lines.some((line) => line.includes('health server cannot start')))
  stop.abort()
  await running
  await untilTrue(() => lines.some((line) => line.includes('health server listens')))
  later.abort()
  await waiting

  // In a take-over the old process has the port for a moment.
  const old = await listen({ host: '127.0.0.1', port, handler: () => text('old') })
  const heir = new AbortController()
  const takeover = configWith({
    healthzBindAddress: `127.0.0.1:${port}`,
    metricsBindAddress: '',
    takeover: true,
  })
  let tries = 0
  const sleep = async () => {
    tries += 1
    if (tries === 3) await close(old)
  }
  lines.length = 0
  events.length = 0
  const taking = runServers({ ...at(takeover), sleep }, heir.signal)
  await untilTrue(() => lines.some((line) => line.includes('health server listens')))
  heir.abort()
  await taking
  t.notMatch(lines.join(''), /"level":"(error|warn)"/, 'a normal take-over is quiet')
  t.match(lines.join(''), /health server waits for its port/)
  t.same(events, [])

  const foreign = await listen({ host: '127.0.0.1', port, handler: () => text('foreign') })
  const robbed = new AbortController()
  const never = runServers({ ...at(takeover), sleep: () => nextTurn() }, robbed.signal)
  await untilTrue(() => lines.some((line) => line.includes('health server cannot start')))
  t.match(events, [{ ...about, reason: 'FailedToStartProxierHealthcheck' }], 'it lasts too long')
  robbed.abort()
  await never
  await close(foreign)
})

t.test('H10: metrics listen on loopback by default, and health on all addresses', async (t) => {
  t.equal(defaultConfig().metricsBindAddress, '127.0.0.1:10249')
  t.equal(defaultConfig().healthzBindAddress, '0.0.0.0:10256')
})

t.test('without an API server events go to the log', async (t) => {
  const lines: string[] = []
  const write = (line: string) => lines.push(line)
  const log = createLogger({ format: 'json', verbosity: 4, isTerminal: false, write })
  const regarding = { kind: 'Service', namespace: 'n', name: 's' } as const
  logEvents(log).record({ type: 'Warning', reason: 'R', action: 'A', note: 'why', regarding })
  t.match(JSON.parse(lines[0]!), { type: 'Warning', reason: 'R', name: 's', msg: 'event: why' })
})

t.test(
  'EV01, EV04, EV05: what the daemon feeds comes out at the ports and as events',
  async (t) => {
    const events: ProxyEvent[] = []
    const port = await freePort()
    const checkPort = await freePort()
    const log = createLogger({
      format: 'json',
      verbosity: 0,
      isTerminal: false,
      write: () => undefined,
    })
    const observation = new Observation({
      running: new RunningConfig({
        config: configWith({ healthzBindAddress: `127.0.0.1:${port}`, metricsBindAddress: '' }),
        origins: new Map(),
      }),
      mode: 'ipvs',
      nodeName: 'n1',
      version: '',
      metrics: new Metrics({ mode: 'ipvs', process: false }),
      log,
      events: { record: (event) => events.push(event) },
      startedAt: 0,
      families: ['IPv4'],
      tracker: { node: undefined },
      syncPeriodMs: 30_000,
      expectsNode: true,
    })
    const stop = new AbortController()
    const running = observation.run(stop.signal)
    while (
      !(await get(port, '/livez').then(
        () => true,
        () => false,
      ))
    );
    t.equal((await get(port, '/healthz')).status, 503, 'H04: no Node yet')
    const node = { name: 'n1', ips: [], podCidrs: [], zone: undefined }
    observation.nodeChanged({ ...node, isBeingDeleted: false, isTaintedForDeletion: false })
    t.equal((await get(port, '/healthz')).status, 200)
    t.equal((await get(port, '/readyz')).status, 503)
    const tracker = new Tracker({ ...plainNode, nodeName: 'n1', bindAddress: '' })
    tracker.setLocalAddresses(['127.0.0.1'])
    const healthChecks = new Map([
      ['d/s', { namespace: 'd', name: 's', port: checkPort, localEndpoints: { IPv4: 1 } }],
      ['d/taken', { namespace: 'd', name: 'taken', port, localEndpoints: { IPv4: 1 } }],
    ])
    observation.queued()
    const taken = {
      service: { namespace: 'd', name: 'asker' },
      event: 'AddressInUse' as const,
      warning: 'that is the ClusterIP of d/s',
    }
    observation.started({ ...tracker.take(), healthChecks, warnings: [taken] })
    const failed = [{ key: 'd/s:http/TCP', reason: 'taken', event: 'PortConflict' }]
    const report = {
      family: 'IPv4',
      full: true,
      planMs: 1,
      applyMs: 1,
      bytes: 1,
      objects: 1,
    } as const
    observation.synced({ ...report, outcome: 'failed', failed: [] })
    t.equal((await get(port, '/readyz')).status, 503, 'a failed sync makes nobody ready')
    observation.synced({ ...report, outcome: 'applied', failed })
    observation.synced({ ...report, outcome: 'unchanged', failed })
    observation.malformed('Service', { namespace: 'd', name: 'm' }, 'nonsense')
    observation.malformed('Service', { namespace: '', name: '' }, 'nothing to regard')
    for (const kind of ['Service', 'Service', 'EndpointSlice'] as const) {
      observation.warned(kind, { namespace: 'd', name: 'm' }, 'annotation x has no effect')
    }
    t.equal((await get(port, '/readyz')).status, 200)
    while (
      !(await get(checkPort, '/').then(
        () => true,
        () => false,
      ))
    );
    t.equal((await get(checkPort, '/')).headers['x-load-balancing-endpoint-weight'], '1')
    t.equal((await get(checkPort, '/', 'GET', '', '127.0.0.2')).status, 200, 'L07: all addresses')
    stop.abort()
    await running
    t.match(events, [
      { type: 'Normal', reason: 'Starting', action: 'StartKubeProxy', regarding: { kind: 'Node' } },
      // IP34: this is upstream's Event, because dashboards look for it.
      { type: 'Warning', reason: 'IPVSDeprecation', regarding: { kind: 'Node', name: 'n1' } },
      { type: 'Warning', reason: 'AddressInUse', regarding: { namespace: 'd', name: 'asker' } },
      {
        type: 'Warning',
        reason: 'FailedToStartServiceHealthcheck',
        action: 'Listen',
        regarding: { kind: 'Service', namespace: 'd', name: 'taken' },
        note: /EADDRINUSE/,
      },
      {
        type: 'Warning',
        reason: 'PortConflict',
        regarding: { kind: 'Service', namespace: 'd', name: 's' },
      },
      { type: 'Warning', reason: 'MalformedObject', regarding: { name: 'm' } },
      { type: 'Warning', reason: 'PartLeftOut', regarding: { kind: 'Service', name: 'm' } },
      { type: 'Warning', reason: 'PartLeftOut', regarding: { kind: 'EndpointSlice' } },
    ])
    t.equal(events.length, 8, 'EV01, and every complaint once')
  },
)

interface Got {
  readonly status: number
  readonly body: string
  readonly headers: Readonly<Record<string, unknown>>
}

function get(
  port: number,
  path: string,
  method = 'GET',
  body = '',
  host = '127.0.0.1',
): Promise<Got> {
  return new Promise((resolve, reject) => {
    const sent = request({ port, path, method, host, agent: false }, (reply) => {
      let text = ''
      reply.on('data', (data: Buffer) => (text += data.toString()))
      reply.on('end', () => {
        resolve({ status: reply.statusCode ?? 0, body: text, headers: reply.headers })
      })
    })
    sent.on('error', reject)
    sent.end(body)
  })
}

async function serving(t: Test, handler: Parameters<typeof listen>[0]['handler']) {
  const server = await listen({ host: '127.0.0.1', port: 0, handler })
  t.teardown(() => close(server))
  const port = portOf(server)
  return { get: (path: string, method?: string, body?: string) => get(port, path, method, body) }
}
