import t from 'tap'
import { listAt, objectAt, textAt, type Json } from '../../../lib/lab/apiserver/json.js'
import { resource } from '../../../lib/lab/apiserver/resources.js'
import { defaultResources } from '../../../lib/lab/apiserver/default-resources.js'
import { fieldWords } from '../../../lib/lab/apiserver/field-words.js'
import { messages } from '../../../lib/lab/apiserver/protobuf/messages.js'
import { openapiV2AsProtobuf } from '../../../lib/lab/apiserver/openapi.js'
import { startServer } from './support/kubectl.js'

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

void t.test('every word of kubectl explain belongs to a kind or a field', (t) => {
  const kinds = new Set(defaultResources.map(({ kind }) => kind))
  for (const name of fieldWords.keys()) {
    const [of = '', field] = name.split('.')
    const fields = of === '*' ? [...messages.values()].flat() : (messages.get(of) ?? [])
    const isThere =
      field === undefined
        ? ['', 'status'].includes(of) || kinds.has(of) || messages.has(of)
        : fields.some((each) => each.name === field)
    t.ok(isThere, name)
  }
  t.end()
})
