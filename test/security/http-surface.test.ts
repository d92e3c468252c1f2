import { fileURLToPath } from 'node:url'
import { join } from 'node:path'
import fc from 'fast-check'
import t, { type Test } from 'tap'
import { createApiServer } from '../../lib/lab/apiserver/server.js'
import { flowsAnswer } from '../../lib/observe/flows/answer.js'
import { FlowLog } from '../../lib/observe/flows/flow-log.js'
import { Health } from '../../lib/observe/healthz.js'
import { close, listen, portOf } from '../../lib/observe/http.js'
import { Metrics } from '../../lib/observe/metrics.js'
import { healthPages, metricsPages, Slis } from '../../lib/observe/pages.js'
import { dashboardAccess } from '../../lib/page/dashboard/access.js'
import { PageServer } from '../../lib/page/server.js'
import { examplesOf, textsOf } from '../support/corpus.js'
import { sendRaw } from '../support/raw-http.js'

const token = 'a-token-of-a-dashboard'

const verbs = [
  'GET',
  'GET',
  'GET',
  'POST',
  'PUT',
  'PATCH',
  'DELETE',
  'HEAD',
  'OPTIONS',
  'TRACE',
  'CONNECT',
]
const oddPaths = ['/', '//', '*', 'http://[', '/../..', '/%zz', '/\\\\x', '/constructor']
const pathsOf = {
  api: [
    ...['/healthz', '/version', '/api', '/apis', '/openapi/v2', '/api/v1/services'],
    '/api/v1/namespaces/default/services',
    '/api/v1/namespaces/default/services/a',
    '/api/v1/namespaces/default/services/a/status',
    '/apis/apps/v1/namespaces/default/deployments/a/scale',
  ],
  health: ['/healthz', '/livez', '/readyz'],
  metrics: [
    '/healthz',
    '/metrics',
    '/metrics/slis',
    '/configz',
    '/debug/flags/v',
    '/proxyMode',
    '/flows',
  ],
  page: ['/', '/events', '/object', '/command', '/style.css', '/page.js'],
} as const
const queries = [
  ...['', '?', '?watch=1', '?watch=true&resourceVersion=x', '?limit=-1', '?limit=1e9&continue=x'],
  ...['?labelSelector=a%3D', '?fieldSelector=x', '?dryRun=All', '?timeoutSeconds=NaN', '?%'],
  ...['?fieldManager=x&force=true', '?resourceVersion=-1', '?sendInitialEvents=true', '?kind=Pod'],
  ...['?watch=1&timeoutSeconds=1e99', '?resourceVersion=999999999999999999999&limit=2'],
  ...[
    '?after=1&limit=2',
    '?after=-1',
    '?verdict=x',
    '?from=10.0.0.0/99',
    '?service=/:',
    `?token=${token}`,
  ],
]
const types = [
  ...['application/json', 'application/yaml', 'application/vnd.kubernetes.protobuf', 'text/plain'],
  ...[
    'application/json-patch+json',
    'application/merge-patch+json',
    'application/apply-patch+yaml',
  ],
  'application/strategic-merge-patch+json',
]
const bodies = [
  ...['', '{}', '[]', 'null', '1', '{', '\xff\xfe', 'k8s\0\x0a\x01', '&a [*a, *a]', '"x"', '4'],
  ...['{"metadata":{"name":"a"},"spec":{"ports":[{"port":80}]}}', '[{"op":"move"}]', '- *x'],
  ...['{"__proto__":{"x":1}}', '{"kind":1,"metadata":[]}', 'x'.repeat(5000), '{"spec":null}'],
]

const odd = fc.oneof(fc.string({ maxLength: 12 }), fc.constantFrom('\0', '\r', '\n', '\xff', ' '))

function mostly(values: readonly string[]): fc.Arbitrary<string> {
  return fc.oneof(
    { weight: 29, arbitrary: fc.constantFrom(...values) },
    { weight: 1, arbitrary: odd },
  )
}

function named(name: string, ...values: readonly string[]): fc.Arbitrary<string> {
  return mostly(values).map((value) => `${name}: ${value}`)
}

const header = fc.oneof(
  { weight: 8, arbitrary: named('Content-Type', ...types) },
  { weight: 4, arbitrary: named('Accept', ...types, '*/*', 'application/json;as=Table;v=v1') },
  named('Origin', 'null', 'http://evil', 'http://['),
  named('Transfer-Encoding', 'chunked', 'gzip', 'chunked, chunked'),
  named('Content-Length', '0', '-1', '1', '99', '1e3'),
  named('Expect', '100-continue', 'x'),
  named('Upgrade', 'websocket\r\nConnection: Upgrade', 'h2c\r\nConnection: Upgrade'),
  named('Authorization', 'Bearer x', 'Basic !'),
  named('Cookie', 'kube-proxy-dashboard=x', '=', ';;', 'kube-proxy-dashboard'),
  fc.tuple(odd, odd).map(([name, value]) => `${name}: ${value}`),
)

function requestTo(port: number, paths: readonly string[]): fc.Arbitrary<string> {
  const own = [1, 2, 3, 4].map(() => `127.0.0.1:${port}`)
  const hosts = [...own, ...own, `localhost:${port}`, 'evil', '[', '']
  const parts = fc.record({
    verb: mostly(verbs),
    path: mostly([...paths, ...paths, ...oddPaths]),
    query: mostly(queries),
    version: mostly(['HTTP/1.1', 'HTTP/1.1', 'HTTP/1.0', 'HTTP/9.9']),
    host: mostly(hosts),
    headers: fc.array(header, { maxLength: 2 }),
    body: mostly(bodies),
    isMeasured: fc.integer({ max: 9, min: 0 }).map((roll) => roll > 0),
    hasToken: fc.boolean(),
  })
  return parts.map(({ verb, path, query, version, host, headers, body, isMeasured, hasToken }) =>
    [
      `${verb} ${path}${query} ${version}`,
      `Host: ${host}`,
      ...(hasToken ? [`Authorization: Bearer ${token}`] : []),
      ...headers,
      ...(isMeasured ? [`Content-Length: ${body.length}`] : []),
      'Connection: close',
      '',
      body,
    ].join('\r\n'),
  )
}

/** A request of the corpus with this port for PORT, and with the line ends of HTTP. */
const sentTo = (port: number) => (text: string) =>
  text.replaceAll('PORT', String(port)).replaceAll('\n', '\r\n')

/**
 * Sends requests to a port. None may be an internal error, and the server must answer afterwards.
 */
async function bombard(t: Test, port: number, paths: readonly string[]): Promise<void> {
  const broken: unknown[] = []
  const note = (error: unknown) => broken.push(error)
  process.on('unhandledRejection', note).on('uncaughtException', note).on('warning', note)
  const counts = new Map<number, number>()
  try {
    await fc.assert(
      fc.asyncProperty(requestTo(port, paths), async (request) => {
        const { statuses, text } = await sendRaw(port, request, 25)
        for (const status of statuses) {
          counts.set(status, (counts.get(status) ?? 0) + 1)
          if (status >= 500) throw new Error(text)
        }
        if (broken.length > 0) throw broken[0]
      }),
      { numRuns: 600, examples: examplesOf(textsOf('http').map(sentTo(port))) },
    )
    const last = await sendRaw(
      port,
      `GET ${paths[0] ?? '/'} HTTP/1.1\r\nHost: 127.0.0.1:${port}\r\nAuthorization: Bearer ${token}\r\nConnection: close\r\n\r\n`,
    )
    t.strictSame(last.statuses, [200])
    t.ok(counts.has(200), 'some get through, or nothing was tried')
    t.strictSame(broken, [])
  } finally {
    process.off('unhandledRejection', note).off('uncaughtException', note).off('warning', note)
  }
}

void t.test('no request breaks the API server or causes an internal error', async (t) => {
  const api = createApiServer({ runtime: undefined })
  const stop = new AbortController()
  const running = api.run(stop.signal)
  t.teardown(async () => {
    stop.abort()
    await running
  })
  await bombard(t, Number(new URL(await api.listening()).port), pathsOf.api)
})

void t.test('no request breaks the health and metrics servers', async (t) => {
  const health = new Health({
    families: ['IPv4'],
    timeoutMs: 1e9,
    expectsNode: false,
    date: Date.now,
    now: Date.now,
  })
  health.synced('IPv4')
  const [metrics, slis] = [new Metrics({ mode: 'nftables', process: false }), new Slis()]
  const log = new FlowLog(10, () => '')
  const pages = metricsPages({
    mode: 'nftables',
    metrics: () => slis.page(),
    slis: () => slis.page(),
    configz: () => ({}),
    status: () => [],
    flagz: () => '',
    failingEndpoints: () => [],
    flows: (query) => flowsAnswer(log, query),
    statusz: () => '',
    setVerbosity: () => () => undefined,
  })
  for (const [handler, paths] of [
    [healthPages(health, metrics, slis), pathsOf.health],
    [pages, pathsOf.metrics],
  ] as const) {
    const server = await listen({ host: '127.0.0.1', port: 0, handler })
    t.teardown(() => close(server))
    await bombard(t, portOf(server), paths)
  }
})

void t.test('no request breaks the page, with and without a token', async (t) => {
  const view = {} as never
  const source = {
    ...{ view: () => view, subscribe: () => () => undefined, perform: () => Promise.resolve() },
  }
  const page = await PageServer.listen(source, 0)
  const tokenFile = join(t.testdir({ token }), 'token')
  const access = await dashboardAccess(
    { host: '127.0.0.1', port: 0 },
    { tokenFile, tlsCertFile: '', tlsKeyFile: '' },
  )
  const guarded = await PageServer.listen(source, 0, access)
  const site = await PageServer.listenSite(fileURLToPath(new URL('../../site', import.meta.url)), 0)
  for (const each of [page, guarded, site]) {
    t.teardown(() => each.close())
    await bombard(t, Number(new URL(each.url).port), pathsOf.page)
  }
})
