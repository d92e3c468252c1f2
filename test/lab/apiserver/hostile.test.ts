import fc from 'fast-check'
import t from 'tap'
import type { Json } from '../../../lib/lab/apiserver/json.js'
import { parseObject } from '../../../lib/lab/apiserver/object.js'
import { applyJsonPatch } from '../../../lib/lab/apiserver/patch/json-patch.js'
import { applyServerSide } from '../../../lib/lab/apiserver/patch/server-side-apply.js'
import {
  applyMergePatch,
  applyStrategicMergePatch,
} from '../../../lib/lab/apiserver/patch/merge-patch.js'
import { decodeProtobuf } from '../../../lib/lab/apiserver/protobuf/decode.js'
import { parseFieldSelector, parseLabelSelector } from '../../../lib/lab/apiserver/selectors.js'
import { createApiServer } from '../../../lib/lab/apiserver/server.js'
import { ApiError } from '../../../lib/lab/apiserver/status.js'
import { tableOf } from '../../../lib/lab/apiserver/table.js'
import { bytesOf, examplesOf, near, textsOf, valuesOf } from '../../support/corpus.js'

/** Any values, most of them of a wrong kind for the API. */
const anything: fc.Arbitrary<Json> = fc.oneof(
  fc.jsonValue(),
  fc.constantFrom<Json>(null, '', 'None', -1, 65_536, 1e300, 'x'.repeat(300), [], {}, [null], [[]]),
)

/** Values that are mostly correct, so that the later checks are reached too. */
function mostly(...values: readonly Json[]): fc.Arbitrary<Json> {
  return fc.oneof(
    { weight: 12, arbitrary: fc.constantFrom(...values) },
    { weight: 1, arbitrary: anything },
  )
}

function several(item: fc.Arbitrary<Json>): fc.Arbitrary<Json> {
  return fc.oneof(
    { weight: 12, arbitrary: fc.array(item, { minLength: 1, maxLength: 3 }) },
    { weight: 1, arbitrary: anything },
  )
}

const port = fc.record(
  {
    name: mostly('http', 'dns', 'x'),
    port: mostly(80, 81, 443),
    targetPort: mostly(8080, 'http'),
    protocol: mostly('TCP', 'UDP', 'SCTP'),
    nodePort: mostly(0, 30_000),
  },
  { requiredKeys: ['name', 'port'] },
)

const container = fc.record(
  { name: mostly('c'), image: mostly('i'), ports: anything },
  { requiredKeys: ['name', 'image'] },
)

const spec: fc.Arbitrary<Json> = fc.record(
  {
    ports: several(port),
    type: mostly('ClusterIP', 'NodePort', 'LoadBalancer'),
    clusterIP: mostly('', '10.96.0.9', 'None'),
    ipFamilies: mostly(['IPv4'], ['IPv6', 'IPv4']),
    ipFamilyPolicy: mostly('SingleStack', 'PreferDualStack'),
    externalIPs: mostly([], ['192.0.2.1']),
    sessionAffinity: mostly('None', 'ClientIP'),
    sessionAffinityConfig: mostly(null),
    internalTrafficPolicy: mostly('Local'),
    selector: mostly({ app: 'x' }, { matchLabels: { app: 'x' } }),
    replicas: mostly(1, 2),
    containers: several(container),
    template: mostly({
      metadata: { labels: { app: 'x' } },
      spec: { containers: [{ name: 'c', image: 'i' }] },
    }),
  },
  { requiredKeys: ['ports', 'containers', 'template', 'selector'] },
)

const metadata: fc.Arbitrary<Json> = fc.record(
  {
    name: mostly('a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'),
    labels: mostly({}, { app: 'x' }),
    annotations: mostly({}, { a: 'b' }),
    ownerReferences: mostly([], [{ uid: 'x' }]),
    finalizers: mostly([], ['a/b']),
    managedFields: anything,
    resourceVersion: mostly(''),
  },
  { requiredKeys: ['name'] },
)

/** Whether the work succeeds, or fails with an error that blames the client. */
function isHandled(work: () => unknown): boolean {
  try {
    work()
    return true
  } catch (error) {
    if (error instanceof ApiError && error.code < 500) return true
    throw error
  }
}

void t.test('no object breaks the server, and every stored object can be shown', (t) => {
  const api = createApiServer({ runtime: undefined })
  const kinds = api.registry.resources.all.filter((kind) =>
    ['Service', 'EndpointSlice', 'Pod', 'Deployment', 'Node', 'Event', 'Secret'].includes(
      kind.kind,
    ),
  )
  let accepted = 0
  const object = fc.record(
    {
      metadata,
      spec,
      status: anything,
      endpoints: several(
        fc.record({ addresses: mostly(['10.0.0.1'], ['fd00::1']), conditions: anything }),
      ),
      addressType: mostly('IPv4', 'IPv6'),
      stringData: mostly({ a: 'b' }),
      involvedObject: anything,
    },
    { requiredKeys: ['metadata', 'spec', 'endpoints', 'addressType'] },
  )
  fc.assert(
    fc.property(fc.constantFrom(...kinds), object, fc.boolean(), (kind, body, isUpdate) => {
      const apiVersion = kind.group === '' ? kind.version : `${kind.group}/${kind.version}`
      const input = { ...body, apiVersion, kind: kind.kind } as Record<string, Json>
      return isHandled(() => {
        const options = { fieldManager: 'fuzz', keepStatus: true }
        const stored = isUpdate
          ? api.registry.update(kind, input, options)
          : api.registry.create(kind, input, options)
        tableOf([stored], {
          columns: kind.columns,
          rowObject: 'Object',
          now: 0,
          withColumns: true,
          listMeta: {},
        })
        JSON.stringify(stored)
        accepted++
      })
    }),
    { numRuns: 3000 },
  )
  for (const value of valuesOf('apiserver-object')) {
    isHandled(() => {
      const input = value as Record<string, Json>
      const kind = kinds.find((each) => each.kind === input['kind'])
      if (!kind) throw new Error(`no such kind: ${JSON.stringify(value)}`)
      api.registry.create(kind, input, { fieldManager: 'corpus', keepStatus: true })
    })
  }
  t.ok(accepted > 200, `some get through, or nothing was tried: ${accepted}`)
  t.end()
})

void t.test('no patch, selector or protobuf body breaks the server', (t) => {
  const document = {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name: 'a', labels: { x: 'y' } },
    spec: { ports: [{ port: 80, name: 'http' }], externalIPs: ['1.1.1.1'] },
  }
  const operation = fc.record({
    op: fc.constantFrom('add', 'remove', 'replace', 'move', 'copy', 'test', 'x'),
    path: fc.constantFrom(
      '',
      '/',
      '/spec',
      '/spec/ports/0',
      '/spec/ports/-',
      '/spec/ports/9',
      '/__proto__/x',
      'x',
    ),
    from: fc.constantFrom('', '/spec/ports', '/metadata', '/none'),
    value: anything,
  })
  const examples = valuesOf('apiserver-patch').map((value): [never[], Json, Json] => {
    const raw = value as Json
    return [Array.isArray(raw) ? (raw as never[]) : [], raw, raw]
  })
  fc.assert(
    fc.property(fc.array(operation, { maxLength: 4 }), anything, spec, (operations, raw, part) => {
      isHandled(() => applyJsonPatch(document, operations))
      isHandled(() => applyJsonPatch(document, raw))
      applyMergePatch(document, raw)
      isHandled(() => applyStrategicMergePatch(document, { spec: part }))
      isHandled(() =>
        applyStrategicMergePatch(document, {
          $patch: raw,
          spec: { $retainKeys: raw, '$setElementOrder/ports': raw },
        }),
      )
      const applied = { apiVersion: 'v1', kind: 'Service', metadata: { name: 'a' }, spec: part }
      isHandled(() =>
        applyServerSide(parseObject(document), parseObject(applied), {
          name: 'f',
          time: '',
          force: true,
        }),
      )
      return !('x' in {})
    }),
    { numRuns: 500, examples },
  )
  fc.assert(
    fc.property(fc.string(), (text) => {
      isHandled(() => parseLabelSelector(text)(parseObject(document)))
      return isHandled(() => parseFieldSelector(text)(parseObject(document)))
    }),
    { examples: examplesOf(textsOf('apiserver-selector')) },
  )
  const magic = Buffer.from('k8s\0')
  fc.assert(
    fc.property(fc.oneof(fc.uint8Array({ maxLength: 200 }), near('apiserver-protobuf')), (bytes) =>
      isHandled(() => decodeProtobuf(Buffer.concat([magic, bytes]))),
    ),
    { numRuns: 1000, examples: examplesOf(bytesOf('apiserver-protobuf')) },
  )
  t.end()
})
