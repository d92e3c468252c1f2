import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import t, { type Test } from 'tap'
import type { ApiServerOptions } from '../../lib/lab/apiserver/server.js'
import { createFaultyApi, type FaultyApi } from '../support/faulty-api.js'
import { defaultResources } from '../../lib/lab/apiserver/default-resources.js'
import { ApiClient } from '../../lib/sources/api-client.js'
import { apiServerSource } from '../../lib/sources/api-server.js'
import { openCluster } from '../../lib/sources/cluster-access.js'
import type { ListWatchTiming } from '../../lib/sources/list-watch-timing.js'
import type { ObjectKind, ObjectSink } from '../../lib/sources/source.js'
import { identityOf } from '../../lib/state/parse-object.js'
import { untilTrue } from '../support/until.js'

/** Keeps what a source delivers, in order. */
class Recorder implements ObjectSink {
  readonly present = new Map<string, unknown>()
  readonly log: string[] = []
  readonly failures: string[] = []
  readonly recoveries: string[] = []
  /** Names whose delivery fails, as a bug in the sink would. */
  readonly poison = new Set<string>()

  upsert(kind: ObjectKind, raw: unknown): void {
    const { name } = identityOf(raw)
    this.log.push(`+${kind} ${name}`)
    if (this.poison.has(name)) throw new Error('poisoned')
    this.present.set(`${kind} ${name}`, raw)
  }

  remove(kind: ObjectKind, _namespace: string, name: string): void {
    this.log.push(`-${kind} ${name}`)
    this.present.delete(`${kind} ${name}`)
  }

  synced(kind: ObjectKind): void {
    this.log.push(`synced ${kind}`)
  }

  failed(message: string): void {
    this.failures.push(message)
  }

  recovered(path: string): void {
    this.recoveries.push(path)
  }

  names(kind: ObjectKind): readonly string[] {
    return [...this.present.keys()]
      .filter((key) => key.startsWith(`${kind} `))
      .map((key) => key.slice(kind.length + 1))
      .sort()
  }

  count(entry: string): number {
    return this.log.filter((each) => each === entry).length
  }
}

const impatient: Partial<ListWatchTiming> = {
  pageSize: 2,
  firstRetryMs: 10,
  longestConnectRetryMs: 40,
  longestErrorRetryMs: 40,
}

interface Rig {
  readonly api: FaultyApi
  readonly sink: Recorder
  /** Starts to follow the server. */
  readonly follow: (timing?: Partial<ListWatchTiming>) => Promise<void>
  readonly stopServer: () => Promise<void>
  readonly startServer: () => void
}

async function rig(
  t: Test,
  options: Partial<ApiServerOptions> & { readonly isStreamed?: boolean } = {},
): Promise<Rig> {
  const { isStreamed = false } = options
  const api = createFaultyApi(options)
  const sink = new Recorder()
  const following = new AbortController()
  let serving = new AbortController()
  let running = api.run(serving.signal)
  const url = await api.listening()
  let source = Promise.resolve()
  t.teardown(async () => {
    following.abort()
    await source
    serving.abort()
    await running
  })
  return {
    api,
    sink,
    async follow(timing = {}) {
      const access = await openCluster({ kubeconfig: '', master: url })
      source = apiServerSource({
        client: new ApiClient(access, 'test'),
        nodeName: 'node-1',
        isStreamed,
        timing: { ...impatient, ...timing },
      }).run(sink, following.signal)
    },
    async stopServer() {
      serving.abort()
      await running
    },
    startServer() {
      serving = new AbortController()
      running = api.run(serving.signal)
    },
  }
}

function service(name: string, extra: object = {}, labels: Record<string, string> = {}) {
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name, labels },
    spec: { ports: [{ port: 80 }], ...extra },
  }
}

function slice(name: string, labels: Record<string, string> = {}) {
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { name, labels: { 'kubernetes.io/service-name': 'a', ...labels } },
    addressType: 'IPv4',
    ports: [{ name: '', port: 80, protocol: 'TCP' }],
    endpoints: [{ addresses: ['10.0.0.1'] }],
  }
}

const node = (name: string) => ({ apiVersion: 'v1', kind: 'Node', metadata: { name } })
const ref = (name: string) => ({ apiVersion: 'v1', kind: 'Service', name })
const kinds: readonly ObjectKind[] = ['Service', 'EndpointSlice', 'Node', 'ServiceCIDR']

for (const isStreamed of [false, true]) {
  const way = isStreamed ? 'one watch' : 'pages'
  void t.test(`R01 S03 S04 S05 R09 R10: the objects we need arrive, by ${way}`, async (t) => {
    const { api, sink, follow } = await rig(t, { isStreamed })
    for (const name of ['a', 'b', 'c', 'd', 'e']) api.put(service(name))
    api.put(service('headless', { clusterIP: 'None' }))
    api.put(service('other', {}, { 'service.kubernetes.io/service-proxy-name': 'x' }))
    api.put(slice('a-1'))
    api.put(slice('headless-1', { 'service.kubernetes.io/headless': '' }))
    api.put(node('node-1'))
    api.put(node('node-2'))
    await follow()
    await untilTrue(() => kinds.every((kind) => sink.count(`synced ${kind}`) === 1))
    t.strictSame(sink.names('Service'), ['a', 'b', 'c', 'd', 'e'])
    t.strictSame(sink.names('EndpointSlice'), ['a-1'])
    t.strictSame(sink.names('Node'), ['node-1'])
    t.strictSame(sink.names('ServiceCIDR'), ['kubernetes'])
    const services = sink.log.filter((entry) => entry.includes('Service'))
    t.ok(services.indexOf('synced Service') >= services.indexOf('+Service e'), 'synced comes last')

    api.put(service('f'))
    await untilTrue(() => sink.names('Service').includes('f'))
    api.put(service('f', {}, { 'service.kubernetes.io/service-proxy-name': 'x' }))
    await untilTrue(() => !sink.names('Service').includes('f'))
    api.remove(ref('a'))
    await untilTrue(() => !sink.names('Service').includes('a'))
    t.strictSame(sink.failures, [])
  })
}

void t.test('an ended or broken watch resumes where it stopped, without a new list', async (t) => {
  const { api, sink, follow } = await rig(t)
  api.put(service('a'))
  await follow()
  await untilTrue(() => sink.count('synced Service') === 1 && api.faults.watches.size === 4)
  api.faults.dropWatches('services')
  api.put(service('b'))
  await untilTrue(() => sink.names('Service').includes('b'))
  for (const [name, fault] of [
    ['c', () => api.faults.cutWatches('services')],
    ['d', () => api.faults.failWatches(500, 'services')],
    ['e', () => api.faults.inject({ verbs: ['watch'], effect: { answer: 500 }, times: 2 })],
    ['f', () => api.faults.inject({ verbs: ['watch'], effect: { answer: 429 }, times: 2 })],
    ['g', () => api.faults.inject({ verbs: ['watch'], effect: { cut: true }, times: 2 })],
  ] as const) {
    await untilTrue(() => api.faults.watches.size === 4)
    fault()
    api.faults.dropWatches()
    api.put(service(name))
    await untilTrue(() => sink.names('Service').includes(name))
  }
  t.equal(sink.count('synced Service'), 1, 'no second list')
  t.equal(sink.count('+Service a'), 1)
  t.match(sink.failures.join('\n'), 'injected fault: 500')
})

void t.test('410: an expired version causes a new list, which removes objects', async (t) => {
  for (const [forget, isStreamed] of [
    ['compact', false],
    ['restart', false],
    ['compact', true],
    ['restart', true],
  ] as const) {
    await t.test(`after ${forget}, by ${isStreamed ? 'one watch' : 'a list'}`, async (t) => {
      const { api, sink, follow, stopServer, startServer } = await rig(t, { isStreamed })
      for (const name of ['a', 'b', 'c']) api.put(service(name))
      await follow()
      await untilTrue(() => sink.count('synced Service') === 1 && api.faults.watches.size === 4)
      await stopServer()
      api.remove(ref('b'))
      api.put(service('d'))
      api.faults[forget]()
      startServer()
      await untilTrue(() => sink.count('synced Service') === 2)
      t.strictSame(sink.names('Service'), ['a', 'c', 'd'])
      t.ok(sink.log.indexOf('-Service b') > sink.log.lastIndexOf('+Service d'), 'removed last')
      api.put(service('e'))
      await untilTrue(() => sink.names('Service').includes('e'))
    })
  }

  for (const [how, fail] of [
    ['an ERROR event', (api: FaultyApi) => api.faults.failWatches(410, 'services')],
    [
      'the status of a watch',
      (api: FaultyApi) => {
        api.faults.inject({ verbs: ['watch'], effect: { answer: 410 }, times: 4 })
        api.faults.dropWatches()
      },
    ],
  ] as const) {
    await t.test(`told by ${how}`, async (t) => {
      const { api, sink, follow } = await rig(t)
      api.put(service('a'))
      await follow()
      await untilTrue(() => api.faults.watches.size === 4)
      fail(api)
      await untilTrue(() => sink.count('synced Service') === 2)
      t.equal(sink.count('-Service a'), 0)
    })
  }
})

void t.test('R01: a failed list removes nothing, and nothing counts as synced', async (t) => {
  const { api, sink, follow, stopServer, startServer } = await rig(t)
  await stopServer()
  for (const name of ['a', 'b', 'c', 'd', 'e']) api.put(service(name))
  await follow()
  await untilTrue(() => sink.failures.length >= 4)
  t.match(sink.failures[0], 'ECONNREFUSED')
  t.strictSame(sink.log, [])

  // The second page of the first three lists is cut, so they never end.
  let lists = 0
  startServer()
  const take = api.faults.take.bind(api.faults)
  api.faults.take = (verb, resource) => {
    if (verb !== 'list' || resource !== 'services') return take(verb, resource)
    lists++
    return lists % 2 === 0 && lists <= 6 ? { cut: true } : undefined
  }
  await untilTrue(() => lists >= 6)
  t.equal(sink.count('synced Service'), 0)
  await untilTrue(() => sink.count('synced Service') === 1)
  t.strictSame(sink.names('Service'), ['a', 'b', 'c', 'd', 'e'])

  await stopServer()
  api.put(service('f'))
  api.faults.compact()
  lists = 0
  startServer()
  await untilTrue(() => sink.count('synced Service') === 2)
  t.equal(sink.log.filter((entry) => entry.startsWith('-Service')).length, 0)
})

void t.test('a failed list is tried again, whatever the failure', async (t) => {
  for (const effect of [
    { answer: 500 },
    { answer: 503 },
    { answer: 429 },
    { answer: 403 },
    { cut: true },
    { hang: true },
    { drip: { bytes: 2, everyMs: 5 } },
  ] as const) {
    await t.test(JSON.stringify(effect), async (t) => {
      const { api, sink, follow } = await rig(t)
      api.put(service('a'))
      api.faults.inject({ verbs: ['list'], resources: ['services'], effect, times: 3 })
      // The limit is short only if it must expire: a busy machine needs time for a good answer.
      const isSlow = 'hang' in effect || 'drip' in effect
      await follow(isSlow ? { headTimeoutMs: 100, pageTimeoutMs: 100 } : {})
      await untilTrue(() => sink.count('synced Service') === 1)
      t.strictSame(sink.names('Service'), ['a'])
      if (isSlow) t.ok(sink.failures.length >= 3)
      else t.equal(sink.failures.length, 3)
      api.put(service('b'))
      await untilTrue(() => sink.names('Service').includes('b'))
      if (isSlow) t.ok(sink.recoveries.includes('/api/v1/services'))
      else t.strictSame(sink.recoveries, ['/api/v1/services'], 'the end of the failures is told')
    })
  }
})

void t.test('Retry-After is respected', async (t) => {
  const { api, sink, follow } = await rig(t)
  api.faults.inject({
    verbs: ['list'],
    resources: ['services'],
    effect: { answer: 429, retryAfterSeconds: 1 },
    times: 1,
  })
  const start = Date.now()
  await follow()
  await untilTrue(() => sink.count('synced Service') === 1)
  t.ok(Date.now() - start >= 990)
})

void t.test('a watch without events and bookmarks is opened again', async (t) => {
  const { api, sink, follow } = await rig(t)
  await follow({ idleTimeoutMs: 60 })
  await untilTrue(() => sink.failures.some((text) => text.includes('no byte for 60 ms')))
  api.put(service('a'))
  await untilTrue(() => sink.names('Service').includes('a'))
  t.equal(sink.count('synced Service'), 1)
})

void t.test('bookmarks let a quiet watch resume', async (t) => {
  const { api, sink, follow } = await rig(t, { bookmarkEveryMs: 20 })
  await follow({ idleTimeoutMs: 5000 })
  await untilTrue(() => api.faults.watches.size === 4)
  // Changes of another kind raise the version. Only a bookmark tells this to the watch of Services.
  api.put({ apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'x' } })
  await delay(1500)
  api.faults.compact()
  api.faults.dropWatches()
  api.put(service('a'))
  await untilTrue(() => sink.names('Service').includes('a'))
  t.equal(sink.count('synced Service'), 1, 'no second list')
})

void t.test('one bad object does not stop the others', async (t) => {
  const { api, sink, follow } = await rig(t)
  sink.poison.add('bad')
  for (const name of ['a', 'bad', 'c']) api.put(service(name))
  await follow()
  await untilTrue(() => sink.count('synced Service') === 1)
  api.put(service('bad', {}, { changed: 'yes' }))
  api.put(service('d'))
  await untilTrue(() => sink.names('Service').includes('d'))
  t.strictSame(sink.names('Service'), ['a', 'c', 'd'])
  t.strictSame(sink.failures, Array(2).fill('take Service default/bad: poisoned'))
})

void t.test(
  'R09: a cluster without ServiceCIDRs, or without the right to read them, counts as synced',
  async (t) => {
    const without = await rig(t, {
      resources: defaultResources.filter((kind) => kind.kind !== 'ServiceCIDR'),
    })
    await without.follow()
    await untilTrue(() => without.sink.count('synced ServiceCIDR') === 1)
    t.strictSame(without.sink.failures, [])

    const hidden = await rig(t)
    hidden.api.faults.inject({ resources: ['servicecidrs'], effect: { answer: 403 } })
    await hidden.follow()
    await untilTrue(() => hidden.sink.count('synced ServiceCIDR') === 1)
    t.match(hidden.sink.failures, ['403'])
  },
)

void t.test('a rotated token is read again when the old one is refused', async (t) => {
  const directory = await mkdtemp(join(tmpdir(), 'kpts-access-'))
  t.teardown(() => rm(directory, { recursive: true }))
  let valid = 'first'
  const { api, sink } = await rig(t, { accepts: (token) => token === valid })
  const tokenFile = join(directory, 'token')
  await writeFile(tokenFile, 'first\n')
  await api.writeKubeconfig(join(directory, 'kubeconfig'))
  const text = await readFile(join(directory, 'kubeconfig'), 'utf8')
  // The path is relative to the kubeconfig, as kubeadm writes it.
  await writeFile(
    join(directory, 'kubeconfig'),
    text.replace('user: {}', 'user: { tokenFile: token }'),
  )
  const access = await openCluster({ kubeconfig: join(directory, 'kubeconfig'), master: '' })
  const controller = new AbortController()
  const running = apiServerSource({
    client: new ApiClient(access, 'test'),
    nodeName: 'node-1',
    timing: impatient,
  }).run(sink, controller.signal)
  await untilTrue(() => sink.count('synced Service') === 1)
  t.strictSame(sink.failures, [])
  valid = 'second'
  api.faults.dropWatches()
  await untilTrue(() => sink.failures.some((failure) => failure.includes('401')))
  await writeFile(tokenFile, 'second\n')
  api.put(service('a'))
  await untilTrue(() => sink.names('Service').includes('a'))
  controller.abort()
  await running
})
