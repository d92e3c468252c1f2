import t from 'tap'
import { readManifests, seedFrom } from '../../../lib/lab/apiserver/manifests.js'
import { createApiServer } from '../../../lib/lab/apiserver/server.js'
import { at, listAt, type Json } from '../../../lib/lab/apiserver/json.js'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { noKubectl, startServer } from './support/kubectl.js'

const definition = {
  apiVersion: 'apiextensions.k8s.io/v1',
  kind: 'CustomResourceDefinition',
  metadata: { name: 'backends.example.com' },
  spec: {
    group: 'example.com',
    scope: 'Namespaced',
    names: { plural: 'backends', kind: 'Backend', shortNames: ['be'] },
    versions: [
      {
        name: 'v1beta1',
        served: true,
        storage: false,
        schema: { openAPIV3Schema: { type: 'object' } },
      },
      {
        name: 'v1',
        served: true,
        storage: true,
        schema: { openAPIV3Schema: { type: 'object' } },
        subresources: { status: {} },
        additionalPrinterColumns: [
          { name: 'Weight', type: 'integer', jsonPath: '.spec.weight' },
          { name: 'Ready', type: 'string', jsonPath: '.status.conditions[?(@.type=="Ready")]' },
        ],
      },
    ],
  },
}

const backend = {
  apiVersion: 'example.com/v1',
  kind: 'Backend',
  metadata: { name: 'one', namespace: 'default' },
  spec: { weight: 1, ports: [{ port: 80 }, { port: 81 }], volumes: ['a'] },
}

/** The manifests of a proxy as one JSON list, which kubectl reads too. */
const list = {
  apiVersion: 'v1',
  kind: 'List',
  items: [
    object('v1', 'ServiceAccount', 'proxy'),
    object('v1', 'ConfigMap', 'proxy', { data: { 'config.conf': 'mode: nftables\n' } }),
    object('v1', 'Secret', 'proxy', { data: { token: 'eA==' } }),
    object('rbac.authorization.k8s.io/v1', 'ClusterRole', 'system:proxy', {
      rules: [{ apiGroups: [''], resources: ['services'], verbs: ['list', 'watch'] }],
    }),
    object('rbac.authorization.k8s.io/v1', 'ClusterRoleBinding', 'system:proxy', {
      roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: 'system:proxy' },
      subjects: [{ kind: 'ServiceAccount', name: 'proxy', namespace: 'default' }],
    }),
    object('apps/v1', 'DaemonSet', 'proxy', {
      spec: {
        selector: { matchLabels: { app: 'proxy' } },
        template: {
          metadata: { labels: { app: 'proxy' } },
          spec: { containers: [{ name: 'proxy', image: 'proxy:1' }] },
        },
      },
    }),
    object('networking.k8s.io/v1', 'NetworkPolicy', 'proxy', {
      spec: { podSelector: {}, ingress: [{ ports: [{ port: 80 }] }] },
    }),
    object('monitoring.coreos.com/v1', 'PodMonitor', 'proxy', {
      spec: { podMetricsEndpoints: [{ port: 'metrics' }] },
    }),
    object('monitoring.coreos.com/v1', 'PrometheusRule', 'proxy', {
      spec: { groups: [{ name: 'proxy', rules: [{ alert: 'Gone', expr: 'up == 0' }] }] },
    }),
  ],
}

function object(apiVersion: string, kind: string, name: string, rest: object = {}) {
  return { apiVersion, kind, metadata: { name }, ...rest }
}

const rules = { apiVersion: 'monitoring.coreos.com/v1', kind: 'PrometheusRule', name: 'proxy' }

for (const how of ['apply', 'apply --server-side']) {
  void t.test(`kubectl ${how} stores objects of other kinds`, { skip: noKubectl }, async (t) => {
    const server = await startServer()
    t.teardown(() => server.stop())
    const text = JSON.stringify(list)
    const created = await server.kubectl(`${how} -f -`, text)
    t.equal(created.code, 0, created.stderr)
    for (const { kind } of list.items) t.match(created.stdout, kind.toLowerCase())
    t.match(created.stderr, 'Warning: DaemonSet proxy is stored, but its pods do not run here')
    t.match(
      created.stderr,
      'Warning: NetworkPolicy proxy is stored, but it does not filter packets here',
    )
    await server.ok(`${how} -f -`, text.replace('up == 0', 'up == 1'))
    t.match(server.api.get(rules), { spec: { groups: [{ rules: [{ expr: 'up == 1' }] }] } })
    t.match(server.api.get(rules), { metadata: { generation: 2 } })
    const shown = await server.ok(
      'get sa,cm,secret,clusterrole,clusterrolebinding,ds,netpol,pmon,prometheusrules',
    )
    t.equal(shown.match(/proxy/g)?.length, list.items.length + 1, 'the binding names its role too')
    await server.ok('delete -f -', text)
    t.equal(server.api.get(rules), undefined)
  })
}

void t.test('kubectl applies a definition, and then its kind', { skip: noKubectl }, async (t) => {
  const server = await startServer()
  t.teardown(() => server.stop())
  const text = JSON.stringify(backend)
  t.match((await server.kubectl('apply -f -', text)).stderr, 'no matches for kind "Backend"')
  await server.ok('apply -f -', JSON.stringify(definition))
  await server.ok('wait --for=condition=Established crd/backends.example.com --timeout=300s')
  t.match(await server.ok('apply -f -', text), 'backend.example.com/one created')
  t.match(await server.ok('apply -f -', text), 'unchanged')
  await server.ok('apply -f -', text.replace('"weight":1', '"weight":2'))
  await server.ok('patch be one --type=merge -p {"spec":{"weight":3}}')
  t.match(await server.ok('get be'), /NAME +WEIGHT\none +3\n/)
  const strategic = await server.kubectl('patch be one -p {"spec":{"weight":4}} --type=strategic')
  t.match(strategic.stderr, 'the body of the request was in an unknown format')
  await server.ok('delete crd backends.example.com')
  t.match((await server.kubectl('get backends.example.com')).stderr, /NotFound|doesn't have a/)
})

void t.test('server-side apply replaces lists of a custom resource as a whole', async (t) => {
  const server = await startServer()
  t.teardown(() => server.stop())
  server.api.put(definition)
  const apply = (spec: object, manager = 'me') =>
    fetch(
      `${server.url}/apis/example.com/v1/namespaces/default/backends/one?fieldManager=${manager}`,
      {
        method: 'PATCH',
        headers: { 'content-type': 'application/apply-patch+yaml' },
        body: JSON.stringify({ ...backend, spec }),
      },
    )
  t.equal((await apply(backend.spec)).status, 201)
  // Fields called `volumes` or `ports` have no meaning here, unlike in a Pod or a Service.
  t.equal((await apply({ ports: [{ port: 82 }], volumes: [] })).status, 200)
  const spec = at(server.api.get({ ...backend, name: 'one' }), 'spec')
  t.strictSame(spec, { ports: [{ port: 82 }], volumes: [] })
  const other = await apply({ ports: [] }, 'other')
  t.match(await other.json(), { code: 409, message: /conflict with "me".*: \.spec\.ports$/ })
})

void t.test('a Service of another group has fields of its own', async (t) => {
  const server = await startServer()
  t.teardown(() => server.stop())
  const { spec } = definition
  const names = { plural: 'services', kind: 'Service' }
  const metadata = { name: 'services.example.com' }
  server.api.put({ ...definition, metadata, spec: { ...spec, names } })
  const url = `${server.url}/apis/example.com/v1/namespaces/default/services`
  const created = await fetch(`${url}?fieldValidation=Strict`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ ...backend, kind: 'Service' }),
  })
  t.match(await created.json(), { spec: backend.spec })
})

void t.test('every served version shows the same objects', async (t) => {
  const server = await startServer()
  t.teardown(() => server.stop())
  server.api.put(definition)
  const path = `${server.url}/apis/example.com/v1beta1/namespaces/default/backends`
  const body = JSON.stringify({ ...backend, apiVersion: 'example.com/v1beta1', status: { x: 1 } })
  const headers = { 'content-type': 'application/json' }
  t.equal((await fetch(path, { method: 'POST', headers, body })).status, 201)
  t.match(server.api.get({ ...backend, name: 'one' }), { apiVersion: 'example.com/v1' })
  t.match(await (await fetch(`${path}/one`)).json(), { apiVersion: 'example.com/v1beta1' })
  // The changed definition ends one version and adds another.
  const versions = definition.spec.versions.slice(1) as readonly Json[]
  server.api.put({ ...definition, spec: { ...definition.spec, versions } })
  t.equal((await fetch(path)).status, 404)
  t.equal(server.api.list(backend).length, 1)
  server.api.remove({ ...definition, name: definition.metadata.name })
  t.throws(() => server.api.list(backend), /no kind Backend in example\.com\/v1 is served here/)
  server.api.put(definition)
  t.equal(server.api.list(backend).length, 0, 'objects went with their definition')
})

void t.test('a watch of a custom resource sees what happens to it', async (t) => {
  const server = await startServer()
  t.teardown(() => server.stop())
  server.api.put(definition)
  const response = await fetch(`${server.url}/apis/example.com/v1/backends?watch=1`)
  server.api.put(backend)
  server.api.remove({ ...definition, name: definition.metadata.name })
  server.api.faults.dropWatches()
  const types = (await response.text())
    .trim()
    .split('\n')
    .map((line) => at(JSON.parse(line) as Json, 'type'))
  t.strictSame(types, ['ADDED', 'DELETED'])
})

void t.test('a wrong definition, or a second one for the same kind, is refused', (t) => {
  const api = createApiServer()
  const { spec } = definition
  const refused = (change: object, name = 'backends.example.com') => {
    const changed = { ...definition, metadata: { name }, spec: { ...spec, ...change } }
    t.throws(() => api.put(changed), { code: 422 }, JSON.stringify(change))
  }
  refused({ group: 'nodot' }, 'backends.nodot')
  refused({ group: 'a b.c' }, 'backends.a b.c')
  refused({}, 'other.example.com')
  refused({ names: { plural: '../x', kind: 'Backend' } }, '../x.example.com')
  refused({ names: { plural: 'backends', kind: '' } })
  refused({ scope: 'Somewhere' })
  refused({ versions: [] })
  refused({ versions: 'v1' })
  refused({ versions: [{ name: '__proto__', served: true, storage: true }] })
  const taken = { group: 'discovery.k8s.io', names: { plural: 'endpointslices', kind: 'Mine' } }
  refused(taken, 'endpointslices.discovery.k8s.io')
  t.equal(api.list(definition).length, 0)
  t.end()
})

void t.test('manifests may define a kind and use it, in any order', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'kpts-crd-'))
  t.teardown(() => rm(folder, { recursive: true }))
  await writeFile(join(folder, 'a.json'), JSON.stringify(backend))
  await writeFile(join(folder, 'b.json'), JSON.stringify(definition))
  const api = createApiServer()
  await t.rejects(seedFrom(join(folder, 'a.json'), api), /add its CustomResourceDefinition first/)
  await seedFrom(folder, api)
  t.equal(listAt(api.get({ ...backend, name: 'one' }), 'spec', 'ports').length, 2)
  t.equal((await readManifests(folder)).length, 2)
})
