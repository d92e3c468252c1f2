import t from 'tap'
import {
  isList,
  listAt,
  objectAt,
  textAt,
  type Json,
  type JsonObject,
} from '../../../lib/lab/apiserver/json.js'
import { apiVersionOf, resource } from '../../../lib/lab/apiserver/resources.js'
import { defaultResources } from '../../../lib/lab/apiserver/default-resources.js'
import { blocks, fieldsOf } from '../../../lib/lab/apiserver/explain/field-words.js'
import { messages } from '../../../lib/lab/apiserver/protobuf/messages.js'
import { namespaceLayout } from '../../../lib/lab/playground/cluster-layout.js'
import { nodesOf } from '../../../lib/lab/playground/cluster-objects.js'
import { openapiOf, openapiV2AsProtobuf } from '../../../lib/lab/apiserver/openapi.js'
import { startServer } from './support/kubectl.js'
import { untilTrue } from '../../support/until.js'

const accept = 'application/com.github.proto-openapi.spec.v2@v1.0+protobuf'

void t.test('/openapi/v2 describes what the server accepts, as JSON and as protobuf', async (t) => {
  const server = await startServer()
  t.teardown(() => server.stop())
  const json = await fetch(`${server.url}/openapi/v2`)
  const document = (await json.json()) as Json
  t.equal(textAt(document, 'swagger'), '2.0')
  const patch = objectAt(
    document,
    'paths',
    '/api/v1/namespaces/{namespace}/services/{name}',
    'patch',
  )
  const names = listAt(patch, 'parameters').map((each) => textAt(each, 'name'))
  t.strictSame(names, ['dryRun', 'fieldValidation', 'fieldManager'])
  const protobuf = await fetch(`${server.url}/openapi/v2`, { headers: { accept } })
  const type = 'application/com.github.proto-openapi.spec.v2.v1.0+protobuf'
  t.equal(protobuf.headers.get('content-type'), type, 'an @ would be no media type')
  const bytes = Buffer.from(await protobuf.arrayBuffer())
  t.strictSame(bytes, openapiV2AsProtobuf(defaultResources))
  for (const path of Object.keys(objectAt(document, 'paths'))) t.ok(bytes.includes(path), path)
})

void t.test('the protobuf document consists of correct fields', (t) => {
  const bytes = openapiV2AsProtobuf([resource('v1', 'Pod', 'pods')])
  const numbers: number[] = []
  for (let at = 0; at < bytes.length;) {
    numbers.push(bytes.readUInt8(at++) >> 3)
    let length = 0
    for (let shift = 0, more = true; more; shift += 7) {
      const byte = bytes.readUInt8(at++)
      length += (byte & 127) << shift
      more = byte > 127
    }
    at += length
    t.ok(at <= bytes.length)
  }
  t.strictSame(numbers, [1, 2, 8], 'swagger, info and paths')
  t.end()
})

void t.test('discovery names the most mature version first', async (t) => {
  const versions = ['v1alpha1', 'v2beta1', 'v1', 'v2', 'v10', 'v2beta2', 'odd']
  const resources = versions.map((version) => resource(`example.com/${version}`, 'Thing', 'things'))
  const server = await startServer({ resources: [...defaultResources, ...resources] })
  t.teardown(() => server.stop())
  const group = (await (await fetch(`${server.url}/apis/example.com`)).json()) as Json
  const told = listAt(group, 'versions').map((each) => textAt(each, 'version'))
  t.strictSame(told, ['v10', 'v2', 'v1', 'v2beta2', 'v2beta1', 'v1alpha1', 'odd'])
})

void t.test('a resource that a known version does not serve is not found', async (t) => {
  const server = await startServer()
  t.teardown(() => server.stop())
  for (const path of ['/apis/networking.k8s.io/v1/nothing', '/api/v1/nothing', '/openapi/v2/x']) {
    t.equal((await fetch(server.url + path)).status, 404, path)
  }
})

/** The schemas of all kinds, by name. */
function allSchemas(): ReadonlyMap<string, JsonObject> {
  const versions = [...new Set(defaultResources.map(apiVersionOf))]
  return new Map(
    versions.flatMap((version) => {
      const schemas = objectAt(openapiOf(version, defaultResources), 'components', 'schemas')
      return Object.entries(schemas).map(([name]) => [name, objectAt(schemas, name)] as const)
    }),
  )
}

void t.test('kubectl explain has words for every kind and every field that it shows', (t) => {
  for (const [name, schema] of allSchemas()) {
    t.not(textAt(schema, 'description'), '', name)
    const properties = objectAt(schema, 'properties')
    for (const field of Object.keys(properties)) {
      t.not(textAt(properties, field, 'description'), '', `${name}.${field}`)
    }
  }
  t.end()
})

void t.test('every word of kubectl explain belongs to a kind or a field', (t) => {
  const schemas = allSchemas()
  const kinds = defaultResources.flatMap((each) => [
    each.kind,
    `${apiVersionOf(each)}/${each.kind}`,
  ])
  const shown = [...schemas.keys(), ...kinds, '*']
  const common = ['apiVersion', 'kind', 'metadata']
  for (const [name, { wordsOf, further }] of blocks) {
    t.ok(shown.includes(name), name)
    const names = name === '*' ? [...messages.values()].flat() : fieldsOf(name)
    const known = [...names.map((field) => field.name), ...common, 'status', 'conditions']
    for (const field of wordsOf.keys()) t.ok(known.includes(field), `${name}.${field}`)
    const doubles = further.filter((field) => messages.get(name)?.some(isNamed(field.name)))
    t.strictSame(doubles, [], `${name}: the type is that of the table of messages`)
  }
  t.end()
})

const isNamed =
  (name: string) =>
  (field: { readonly name: string }): boolean =>
    field.name === name

const deployment = {
  apiVersion: 'apps/v1',
  kind: 'Deployment',
  metadata: { name: 'web' },
  spec: {
    selector: { matchLabels: { app: 'web' } },
    template: {
      metadata: { labels: { app: 'web' } },
      spec: { containers: [{ name: 'web', image: 'web', ports: [{ containerPort: 80 }] }] },
    },
  },
} as const

const service = {
  apiVersion: 'v1',
  kind: 'Service',
  metadata: { name: 'web' },
  spec: { type: 'LoadBalancer', selector: { app: 'web' }, ports: [{ port: 80 }] },
} as const

void t.test('kubectl explain knows every field that the server writes', async (t) => {
  const server = await startServer()
  t.teardown(() => server.stop())
  const { api } = server
  for (const node of nodesOf(namespaceLayout)) api.put(node)
  for (const object of [deployment, service]) api.put(object)
  const path = `${server.url}/apis/events.k8s.io/v1/namespaces/default/events`
  const regarding = { apiVersion: 'v1', kind: 'Service', name: 'web', namespace: 'default' }
  const event = { metadata: { name: 'web.1' }, eventTime: new Date().toISOString(), regarding }
  const told = { type: 'Normal', reason: 'Told', action: 'Tell', note: 'for this test' }
  const body = JSON.stringify({ ...event, ...told, reportingController: 'test' })
  await fetch(path, { method: 'POST', body, headers: { 'content-type': 'application/json' } })
  const endpoints = () => api.list({ apiVersion: 'v1', kind: 'Endpoints' })[0]
  await untilTrue(() => listAt(listAt(endpoints(), 'subsets')[0], 'addresses').length !== 0)
  const schemas = allSchemas()
  const core = ['Service', 'Endpoints', 'Pod', 'Node', 'Namespace', 'Event']
  for (const kind of core) check({ apiVersion: 'v1', kind })
  for (const kind of ['Deployment', 'ReplicaSet']) check({ apiVersion: 'apps/v1', kind })
  check({ apiVersion: 'discovery.k8s.io/v1', kind: 'EndpointSlice' })
  check({ apiVersion: 'networking.k8s.io/v1', kind: 'ServiceCIDR' })
  const events = (await (await fetch(path)).json()) as Json
  for (const each of listAt(events, 'items')) walk(each, 'events.k8s.io/v1.Event')

  function check(of: { readonly apiVersion: string; readonly kind: string }): void {
    const objects = api.list(of)
    t.ok(objects.length > 0, `there is a ${of.kind}`)
    for (const object of objects) walk(object, `${of.apiVersion}.${of.kind}`)
  }

  function walk(value: Json | undefined, name: string): void {
    for (const [field, content] of Object.entries(objectAt(value))) {
      const found = objectAt(schemas.get(name), 'properties', field)
      t.ok(Object.keys(found).length > 0, `${name}.${field}`)
      const items = 'items' in found ? objectAt(found, 'items') : found
      const part = textAt(listAt(items, 'allOf')[0], '$ref').split('/').at(-1) ?? ''
      if (part === '') continue
      for (const each of isList(content) ? content : [content]) walk(each, part)
    }
  }
})
