import t, { type Test } from 'tap'
import {
  listAt,
  numberAt,
  textAt,
  type Json,
  type JsonObject,
} from '../../../lib/lab/apiserver/json.js'
import type { ApiServerOptions } from '../../../lib/lab/apiserver/server.js'
import { createFaultyApi } from '../../support/faulty-api.js'
import { untilTrue } from '../../support/until.js'

interface Answer {
  readonly status: number
  readonly headers: Headers
  readonly body: JsonObject
}

async function serving(t: Test, options: Partial<ApiServerOptions> = {}) {
  const api = createFaultyApi({ runtime: undefined, ...options })
  const controller = new AbortController()
  const running = api.run(controller.signal)
  const url = await api.listening()
  t.teardown(async () => {
    controller.abort()
    await running
  })
  const call = async (method: string, path: string, body?: Json, type = 'application/json') => {
    const response = await fetch(url + path, {
      method,
      headers: { 'Content-Type': type },
      ...(body === undefined
        ? {}
        : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
    })
    const text = await response.text()
    return {
      status: response.status,
      headers: response.headers,
      body: JSON.parse(text) as JsonObject,
    }
  }
  return {
    api,
    url,
    call,
    get: (path: string): Promise<Answer> => call('GET', path),
    put: (name: string, labels: Record<string, string> = {}, spec: object = {}) =>
      api.put({
        apiVersion: 'v1',
        kind: 'Service',
        metadata: { name, labels },
        spec: { ports: [{ port: 80 }], ...spec },
      }),
    watch: (query: string, accept = 'application/json') =>
      watching(t, `${url}${services}?watch=1&${query}`, accept),
  }
}

const services = '/api/v1/namespaces/default/services'

/** Collects the events of a watch. */
async function watching(t: Test, url: string, accept: string) {
  const controller = new AbortController()
  t.teardown(() => controller.abort())
  const response = await fetch(url, { headers: { Accept: accept }, signal: controller.signal })
  const events: JsonObject[] = []
  const state = {
    events,
    hasEnded: false,
    names: () =>
      events.map(
        (event) => `${textAt(event, 'type')} ${textAt(event, 'object', 'metadata', 'name')}`,
      ),
  }
  const read = async () => {
    let text = ''
    for await (const chunk of response.body as unknown as AsyncIterable<Uint8Array>) {
      text += Buffer.from(chunk).toString()
      const lines = text.split('\n')
      text = lines.pop() ?? ''
      events.push(...lines.map((line) => JSON.parse(line) as JsonObject))
    }
  }
  void read()
    .catch(() => undefined)
    .then(() => (state.hasEnded = true))
  return state
}

function namesIn(body: JsonObject): readonly string[] {
  return listAt(body, 'items').map((item) => textAt(item, 'metadata', 'name'))
}

void t.test('list: all pages show the same moment, whatever is written in between', async (t) => {
  const { api, get, put } = await serving(t)
  for (const name of ['a', 'b', 'c', 'd', 'e']) put(name)
  const first = await get(`${services}?limit=2`)
  t.strictSame(namesIn(first.body), ['a', 'b'])
  t.equal(numberAt(first.body, 'metadata', 'remainingItemCount'), 3)
  put('b2')
  api.remove({ apiVersion: 'v1', kind: 'Service', name: 'c' })
  const next = `${services}?limit=2&continue=${textAt(first.body, 'metadata', 'continue')}`
  const second = await get(next)
  t.strictSame(namesIn(second.body), ['c', 'd'])
  t.equal(
    textAt(second.body, 'metadata', 'resourceVersion'),
    textAt(first.body, 'metadata', 'resourceVersion'),
  )
  const version = textAt(first.body, 'metadata', 'resourceVersion')
  const exact = await get(`${services}?resourceVersion=${version}&resourceVersionMatch=Exact`)
  t.strictSame(namesIn(exact.body), ['a', 'b', 'c', 'd', 'e'])
  t.strictSame(namesIn((await get(`${services}?resourceVersion=${version}`)).body), [
    'a',
    'b',
    'b2',
    'd',
    'e',
  ])
  api.faults.compact()
  t.match(await get(next), { status: 410, body: { reason: 'Expired' } })
  t.match(await get(`${services}?continue=bogus`), { status: 400 })
  t.match(await get(`${services}?resourceVersion=999999999999999`), {
    status: 504,
    body: { reason: 'Timeout' },
  })
  t.match(await get(`${services}?resourceVersion=x`), { status: 400 })
})

void t.test('list: label and field selectors choose the objects', async (t) => {
  const { get, put } = await serving(t)
  put('a', { tier: 'front', x: '1' })
  put('b', { tier: 'back' }, { type: 'NodePort' })
  put('c', {}, { clusterIP: 'None', selector: {} })
  const names = async (query: string) => namesIn((await get(`${services}?${query}`)).body).join()
  const select = (text: string) => names(`labelSelector=${encodeURIComponent(text)}`)
  t.equal(await select('tier=front'), 'a')
  t.equal(await select('tier==front,x'), 'a')
  t.equal(await select('tier!=front'), 'b,c')
  t.equal(await select('tier in (front, back)'), 'a,b')
  t.equal(await select('tier notin (front)'), 'b,c')
  t.equal(await select('!tier'), 'c')
  t.equal(await names('fieldSelector=metadata.name%3Db'), 'b')
  t.equal(await names('fieldSelector=spec.clusterIP!%3DNone'), 'a,b')
  t.equal(await names('fieldSelector=spec.type%3DNodePort,metadata.namespace%3Ddefault'), 'b')
  t.match(await get(`${services}?labelSelector=a%20b`), { status: 400 })
  t.match(await get(`${services}?fieldSelector=x`), { status: 400 })
})

void t.test('watch: events start at a version or now, and selectors choose them', async (t) => {
  const { api, put, watch } = await serving(t)
  put('a', { app: 'x' })
  const version = String(api.registry.store.version)
  put('b')
  const resumed = await watch(`resourceVersion=${version}`)
  const fresh = await watch('')
  const selected = await watch('labelSelector=app%3Dx')
  await untilTrue(() => fresh.events.length === 2)
  t.strictSame(resumed.names(), ['ADDED b'])
  t.strictSame(fresh.names(), ['ADDED a', 'ADDED b'])
  put('a', { app: 'x' }, { sessionAffinity: 'ClientIP' })
  put('a', { app: 'y' })
  put('b', { app: 'x' })
  api.remove({ apiVersion: 'v1', kind: 'Service', name: 'b' })
  await untilTrue(() => resumed.events.length === 5)
  t.strictSame(resumed.names().slice(1), ['MODIFIED a', 'MODIFIED a', 'MODIFIED b', 'DELETED b'])
  t.strictSame(selected.names(), ['ADDED a', 'MODIFIED a', 'DELETED a', 'ADDED b', 'DELETED b'])
  const versions = resumed.events.map((event) =>
    Number(textAt(event, 'object', 'metadata', 'resourceVersion')),
  )
  t.strictSame(
    versions,
    versions.toSorted((left, right) => left - right),
  )
})

void t.test('watch: bookmarks, streamed lists, time limits and 410 are supported', async (t) => {
  const { api, put, watch } = await serving(t, { bookmarkEveryMs: 20 })
  put('a')
  const streamed = await watch(
    'sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true',
  )
  await untilTrue(() => streamed.events.length >= 3)
  t.strictSame(streamed.names().slice(0, 3), ['ADDED a', 'BOOKMARK ', 'BOOKMARK '])
  t.match(streamed.events[1], {
    object: { kind: 'Service', metadata: { annotations: { 'k8s.io/initial-events-end': 'true' } } },
  })
  const silent = await watch(`resourceVersion=${api.registry.store.version}&timeoutSeconds=1`)
  await untilTrue(() => silent.hasEnded)
  t.notOk(silent.names().includes('BOOKMARK '), 'only who asks gets them')
  api.faults.compact()
  const late = await watch('resourceVersion=1')
  await untilTrue(() => late.hasEnded)
  t.match(late.events, [
    { type: 'ERROR', object: { kind: 'Status', code: 410, reason: 'Expired' } },
  ])
})

void t.test('the server prints tables, in lists and in watches', async (t) => {
  const { url, put, watch } = await serving(t)
  put('a')
  const accept = 'application/json;as=Table;v=v1;g=meta.k8s.io,application/json'
  const response = await fetch(url + services, { headers: { Accept: accept } })
  t.match(await response.json(), {
    kind: 'Table',
    columnDefinitions: [{ name: 'Name', format: 'name' }, { name: 'Type' }],
    rows: [
      {
        cells: ['a', 'ClusterIP'],
        object: { kind: 'PartialObjectMetadata', metadata: { name: 'a' } },
      },
    ],
  })
  const table = await watch('', accept)
  put('b')
  await untilTrue(() => table.events.length === 2)
  t.equal(listAt(table.events[0], 'object', 'columnDefinitions').length, 7)
  t.equal(listAt(table.events[1], 'object', 'columnDefinitions').length, 0)
  const partial = await fetch(url + services, {
    headers: { Accept: 'application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io' },
  })
  t.match(await partial.json(), {
    kind: 'PartialObjectMetadataList',
    items: [{ metadata: { name: 'a' } }, {}],
  })
  const none = await fetch(url + services, {
    headers: { Accept: 'application/vnd.kubernetes.protobuf' },
  })
  t.equal(none.status, 406)
})

void t.test('writes: conflicts and wrong writes are refused; dry runs store nothing', async (t) => {
  const { api, call, get } = await serving(t)
  const body = {
    metadata: { name: 'a', finalizers: ['x/y'] },
    spec: { ports: [{ port: 80 }] },
    status: { x: 1 },
  }
  const created = await call('POST', services, body)
  t.equal(created.status, 201)
  t.match(created.headers.get('warning'), '299 - "metadata.finalizers is ignored')
  t.match(created.body, { metadata: { finalizers: undefined }, status: { x: undefined } })
  t.match(await call('POST', services, body), { status: 409, body: { reason: 'AlreadyExists' } })
  t.match(await call('POST', '/api/v1/namespaces/none/services', body), {
    status: 404,
    body: { message: 'namespaces "none" not found' },
  })
  const path = `${services}/a`
  const status = { loadBalancer: { ingress: [{ ip: '1.2.3.4' }] } }
  await call(
    'PATCH',
    `${path}/status`,
    { status, metadata: { labels: { x: 'y' } } },
    'application/merge-patch+json',
  )
  t.match((await get(path)).body, { status, metadata: { labels: undefined } })
  t.match(await call('PUT', path, created.body), { status: 409, body: { reason: 'Conflict' } })
  const version = api.registry.store.version
  const dry = await call(
    'PATCH',
    `${path}?dryRun=All`,
    { spec: { type: 'NodePort' } },
    'application/merge-patch+json',
  )
  t.match(dry.body, { spec: { type: 'NodePort', ports: [{ nodePort: /^30/ }] } })
  await call('PATCH', path, { metadata: { labels: null } }, 'application/merge-patch+json')
  t.equal(
    api.registry.store.version,
    version,
    'neither a dry run nor a change of nothing is written',
  )

  const node = (address: string) => ({
    metadata: { name: 'n' },
    status: { addresses: [{ type: 'InternalIP', address }] },
  })
  await call('POST', '/api/v1/nodes', node('192.0.2.1'))
  await call('PUT', '/api/v1/nodes/n', node('192.0.2.2'))
  t.match((await get('/api/v1/nodes/n')).body, node('192.0.2.1'), 'a node comes with its addresses')

  t.match(await call('PUT', path, { ...body, metadata: { name: 'b' } }), { status: 400 })
  const nobody = `${services}/nobody`
  t.match(await call('PUT', nobody, body), { status: 400 }, 'the body is wrong, whatever exists')
  t.match(await call('PUT', nobody, '[]'), { status: 400 })
  t.match(await call('POST', services, { kind: 'Pod' }), { status: 400 })
  t.match(await call('POST', services, '{'), { status: 400 })
  t.match(await call('POST', services, '[]'), { status: 400 })
  t.match(await call('POST', services, { metadata: { name: 'x', labels: { a: 1 } } }), {
    status: 400,
  })
  const annotated = (annotations: Record<string, string>) =>
    call('POST', `${services}?dryRun=All`, {
      spec: body.spec,
      metadata: { name: 'x', annotations },
    })
  t.match(await annotated({ 'bad key': '1' }), { status: 422, body: { message: /"bad key"/ } })
  t.match(await annotated({ 'a/b/c': '1' }), { status: 422 })
  t.match(await annotated({ 'Example.com/Key': 'any: words' }), { status: 201 })
  t.match(await annotated({ a: 'x'.repeat(2 ** 18) }), {
    status: 422,
    body: { message: /metadata.annotations: Too long/ },
  })
  t.match(await annotated({}), { body: { metadata: { annotations: undefined } } })
  const secrets = '/api/v1/namespaces/default/secrets'
  const large = 'é'.repeat(200_000)
  const secret = await call('POST', secrets, { metadata: { name: 's' }, stringData: { large } })
  t.match(secret.body, { data: { large: Buffer.from(large).toString('base64') } })
  t.match(await call('POST', services, `"${'x'.repeat(4_000_000)}"`), { status: 413 })
  t.match(await call('PATCH', path, {}, 'text/plain'), { status: 415 })
  t.match(await call('POST', services, 'k8s', 'application/vnd.kubernetes.protobuf'), {
    status: 400,
  })
  t.match(await call('PUT', services, body), { status: 405 })
  t.match(await get('/api/v1/wrong'), { status: 404 })
  t.match(await get(`${path}/log`), { status: 404 })
  t.match(await call('DELETE', path, { preconditions: { uid: 'other' } }), { status: 409 })
  t.match(await call('DELETE', `${path}?dryRun=All`), { status: 200 })
  t.match(await call('DELETE', path), {
    status: 200,
    body: { status: 'Success', details: { name: 'a' } },
  })
  t.match(await call('DELETE', path), { status: 404, body: { message: 'services "a" not found' } })
  const deep = `metadata: ${'{a: '.repeat(1000)}`
  t.equal((await call('POST', services, deep, 'application/yaml')).status, 400)
  const yaml = 'metadata: {name: y}\nspec: {ports: [{port: 1}]}\n'
  t.equal((await call('POST', services, yaml, 'application/yaml')).status, 201)
  await call('DELETE', `${services}?labelSelector=none`)
  t.equal(namesIn((await get(services)).body).length, 1)
  await call('DELETE', services)
  t.equal(namesIn((await get(services)).body).length, 0)
})

void t.test('writes: an unknown field is told once and not stored', async (t) => {
  const { call, put } = await serving(t)
  put('a')
  const patch = (query: string, body: Json) =>
    call('PATCH', `${services}/a?${query}`, body, 'application/merge-patch+json')
  const typed = { spec: { sesionAffinity: 'ClientIP', ports: [{ port: 80, targetport: 81 }] } }
  const warned = await patch('', typed)
  t.match(
    warned.headers.get('warning'),
    /field .+spec\.ports\[0\]\.targetport.+field .+spec\.sesionAffinity/,
  )
  t.notMatch(JSON.stringify(warned.body), /sesionAffinity|targetport/)
  t.match(await patch('fieldValidation=Strict', typed), { status: 400 })
  t.match(await patch('fieldValidation=Ignore', typed), { status: 200 })
  const next = await patch('fieldValidation=Strict', { metadata: { labels: { x: 'y' } } })
  t.equal(next.status, 200, 'a patch that is right is not refused for an earlier one')
})

void t.test('both API groups of events show the same events', async (t) => {
  const { call, get } = await serving(t)
  await call('POST', '/apis/events.k8s.io/v1/namespaces/default/events', {
    metadata: { name: 'e' },
    regarding: { kind: 'Node', name: 'n' },
    note: 'hello',
    reason: 'Starting',
    reportingController: 'kube-proxy',
  })
  t.match((await get('/api/v1/namespaces/default/events/e')).body, {
    apiVersion: 'v1',
    involvedObject: { kind: 'Node', name: 'n' },
    message: 'hello',
    reportingComponent: 'kube-proxy',
  })
  const found = await get('/apis/events.k8s.io/v1/events?fieldSelector=regarding.name%3Dn')
  t.match(listAt(found.body, 'items'), [{ note: 'hello' }])
})

void t.test('discovery, health and version answer what clients ask first', async (t) => {
  const { url, get } = await serving(t)
  t.match((await get('/api')).body, { kind: 'APIVersions', versions: ['v1'] })
  t.match((await get('/apis')).body, { groups: [{ name: 'discovery.k8s.io' }] })
  t.match((await get('/apis/apps')).body, { preferredVersion: { groupVersion: 'apps/v1' } })
  t.match((await get('/apis/apps/v1')).body, {
    resources: [{ name: 'deployments', shortNames: ['deploy'] }],
  })
  t.match((await get('/version')).body, { major: '1', gitVersion: /^v1\.36/ })
  t.equal(await (await fetch(`${url}/readyz`)).text(), 'ok')
  t.match((await get('/openapi/v3')).body, { paths: { 'api/v1': {}, 'apis/apps/v1': {} } })
  for (const version of ['v2', 'v2beta1']) {
    const accept = `application/json;g=apidiscovery.k8s.io;v=${version};as=APIGroupDiscoveryList`
    const answer = await fetch(`${url}/apis`, { headers: { Accept: accept } })
    t.match(answer.headers.get('content-type'), `v=${version}`)
    t.match(await answer.json(), { kind: 'APIGroupDiscoveryList' })
  }
})

void t.test('a token is required if the server has tokens', async (t) => {
  const { url } = await serving(t, { accepts: (token) => token === 'secret' })
  t.equal((await fetch(url + services)).status, 401)
  t.equal(
    (await fetch(url + services, { headers: { Authorization: 'Bearer secret' } })).status,
    200,
  )
})

void t.test('each fault switch causes its fault', async (t) => {
  const { api, url, put, watch } = await serving(t)
  put('a')
  const [long, short] = [300_000, 300]
  const outcome = async (patienceMs = long) => {
    try {
      const response = await fetch(url + services, { signal: AbortSignal.timeout(patienceMs) })
      const text = await response.text()
      return `${response.status} ${text.length > 0}`
    } catch (error) {
      return error instanceof Error ? error.name : 'unknown'
    }
  }
  const healthy = await outcome()
  t.equal(healthy, '200 true')
  const under = async (
    effect: Parameters<typeof api.faults.inject>[0]['effect'],
    patienceMs = long,
  ) => {
    const clear = api.faults.inject({ verbs: ['list'], resources: ['services'], effect })
    const seen = await outcome(patienceMs)
    clear()
    t.equal(await outcome(), healthy)
    return seen
  }
  t.equal(await under({ answer: 410 }), '410 true')
  t.equal(await under({ answer: 429, retryAfterSeconds: 1 }), '429 true')
  t.equal(await under({ answer: 500 }), '500 true')
  t.equal(await under({ hang: true }, short), 'TimeoutError')
  t.equal(await under({ cut: true }), 'TypeError')
  t.equal(await under({ drip: { bytes: 1, everyMs: 20 } }, short), 'TimeoutError')
  api.faults.inject({ effect: { answer: 500 }, times: 1 })
  t.equal(await outcome(), '500 true')
  t.equal(await outcome(), healthy)

  for (const disturb of ['dropWatches', 'cutWatches', 'restart'] as const) {
    const open = await watch('')
    await untilTrue(() => open.events.length === 1)
    api.faults[disturb]()
    await untilTrue(() => open.hasEnded)
    t.equal(api.faults.watches.size, 0)
  }
})
