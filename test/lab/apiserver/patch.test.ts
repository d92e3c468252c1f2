import t from 'tap'
import type { Json } from '../../../lib/lab/apiserver/json.js'
import { parseObject } from '../../../lib/lab/apiserver/object.js'
import { fieldsOf, fromFieldsV1, toFieldsV1 } from '../../../lib/lab/apiserver/patch/field-paths.js'
import { applyJsonPatch } from '../../../lib/lab/apiserver/patch/json-patch.js'
import { managersOf } from '../../../lib/lab/apiserver/patch/managed-fields.js'
import { applyServerSide } from '../../../lib/lab/apiserver/patch/server-side-apply.js'
import {
  applyMergePatch,
  applyStrategicMergePatch,
} from '../../../lib/lab/apiserver/patch/merge-patch.js'

void t.test('a JSON patch (RFC 6902) applies all operations or none', (t) => {
  const document = { a: [1, 2, 3], b: { c: 'd' }, 'x/y~z': 1 }
  const cases: readonly (readonly [operation: Json, expected: Json])[] = [
    [
      { op: 'add', path: '/a/1', value: 9 },
      { ...document, a: [1, 9, 2, 3] },
    ],
    [
      { op: 'add', path: '/a/-', value: 9 },
      { ...document, a: [1, 2, 3, 9] },
    ],
    [
      { op: 'add', path: '/b/e', value: null },
      { ...document, b: { c: 'd', e: null } },
    ],
    [
      { op: 'replace', path: '/b/c', value: 'e' },
      { ...document, b: { c: 'e' } },
    ],
    [
      { op: 'remove', path: '/a/0' },
      { ...document, a: [2, 3] },
    ],
    [
      { op: 'remove', path: '/x~1y~0z' },
      { a: [1, 2, 3], b: { c: 'd' } },
    ],
    [
      { op: 'move', from: '/b/c', path: '/f' },
      { ...document, b: {}, f: 'd' },
    ],
    [
      { op: 'copy', from: '/a/0', path: '/a/3' },
      { ...document, a: [1, 2, 3, 1] },
    ],
    [{ op: 'test', path: '/b', value: { c: 'd' } }, document],
  ]
  for (const [operation, expected] of cases) {
    t.same(applyJsonPatch(document, [operation]), expected, JSON.stringify(operation))
  }
  for (const operation of [
    { op: 'remove', path: '/none' },
    { op: 'replace', path: '/none', value: 1 },
    { op: 'test', path: '/b/c', value: 'x' },
    { op: 'add', path: '/a/7', value: 1 },
    { op: 'add', path: '/none/x', value: 1 },
    { op: 'add', path: 'a', value: 1 },
    { op: 'add', path: '/a/01', value: 1 },
    { op: 'remove', path: '/constructor' },
    { op: 'add', path: '/toString/polluted', value: 1 },
    { op: 'replace', path: '/a/-', value: 1 },
    { op: 'jump', path: '/a' },
  ]) {
    t.throws(() => applyJsonPatch(document, [{ op: 'remove', path: '/b' }, operation]), {
      code: 422,
    })
  }
  t.throws(() => applyJsonPatch(document, {}), { code: 400 })
  const odd = applyJsonPatch({}, [{ op: 'add', path: '/__proto__', value: { polluted: true } }])
  t.strictSame(JSON.stringify(odd), '{"__proto__":{"polluted":true}}', 'an ordinary key')
  t.notOk('polluted' in {})
  t.end()
})

void t.test('a merge patch follows RFC 7386', (t) => {
  t.same(applyMergePatch({ a: 'b', c: { d: 'e', f: 'g' } }, { a: 'z', c: { f: null } }), {
    a: 'z',
    c: { d: 'e' },
  })
  t.same(applyMergePatch({ a: [1, 2] }, { a: [3] }), { a: [3] })
  t.same(applyMergePatch({ a: 1 }, { b: { c: null, d: 1 } }), { a: 1, b: { d: 1 } })
  const hostile = JSON.parse('{"__proto__": {"polluted": true}}') as Json
  applyMergePatch({}, hostile)
  t.notOk('polluted' in {})
  t.end()
})

void t.test('a strategic merge patch merges lists by their key', (t) => {
  const service = {
    spec: {
      ports: [
        { port: 80, name: 'a' },
        { port: 81, name: 'b' },
      ],
      externalIPs: ['1.1.1.1'],
    },
  }
  const patched = (spec: Json) => applyStrategicMergePatch(service, { spec })
  t.match(patched({ ports: [{ port: 81, name: 'c' }] }), {
    spec: {
      ports: [
        { port: 80, name: 'a' },
        { port: 81, name: 'c' },
      ],
    },
  })
  t.same(patched({ ports: [{ port: 80, $patch: 'delete' }] }), {
    spec: { ports: [{ port: 81, name: 'b' }], externalIPs: ['1.1.1.1'] },
  })
  t.match(patched({ ports: [{ $patch: 'replace' }, { port: 82 }] }), {
    spec: { ports: [{ port: 82 }] },
  })
  t.match(patched({ externalIPs: ['2.2.2.2'] }), { spec: { externalIPs: ['2.2.2.2'] } })
  t.match(
    patched({
      ports: [{ port: 79 }],
      '$setElementOrder/ports': [{ port: 81 }, { port: 79 }, { port: 80 }],
    }),
    { spec: { ports: [{ port: 81 }, { port: 79 }, { port: 80 }] } },
  )
  t.same(patched({ $patch: 'replace', type: 'X' }), { spec: { type: 'X' } })
  t.same(patched({ $retainKeys: ['type'], type: 'X' }), { spec: { type: 'X' } })
  const node = { spec: { podCIDRs: ['10.0.0.0/24'] } }
  t.same(applyStrategicMergePatch(node, { spec: { podCIDRs: ['fd00::/64'] } }), {
    spec: { podCIDRs: ['10.0.0.0/24', 'fd00::/64'] },
  })
  t.same(
    applyStrategicMergePatch(node, {
      spec: { '$deleteFromPrimitiveList/podCIDRs': ['10.0.0.0/24'] },
    }),
    { spec: { podCIDRs: [] } },
  )
  t.throws(() => patched({ ports: [{ name: 'x' }] }), { code: 400 })
  t.end()
})

const base = { apiVersion: 'v1', kind: 'Service' }
const object = (labels: Record<string, string>, spec: Json) =>
  parseObject({ ...base, metadata: { name: 'a', labels }, spec })
const by = (name: string, force = false) => ({ name, time: 'now', force })

void t.test('server-side apply: each manager owns the fields it sent', (t) => {
  const first = applyServerSide(
    undefined,
    object({ a: '1', b: '2' }, { ports: [{ port: 80 }, { port: 81 }] }),
    by('one'),
  )
  t.strictSame(
    managersOf(first).map(({ name, operation }) => `${name} ${operation}`),
    ['one Apply'],
  )

  // A second manager adds a port. The first one drops one of its labels and one of its ports.
  const second = applyServerSide(
    first,
    object({ c: '3' }, { ports: [{ port: 81 }, { port: 82 }] }),
    by('two'),
  )
  t.match(second, { metadata: { labels: { a: '1', b: '2', c: '3' } } })
  const third = applyServerSide(
    second,
    object({ a: '1' }, { ports: [{ port: 80, name: 'http' }] }),
    by('one'),
  )
  t.strictSame(third.metadata.labels, { a: '1', c: '3' })
  const ports = third.spec as { ports: { port: number; name?: string }[] }
  t.strictSame(
    new Set(ports.ports.map(({ port }) => port)),
    new Set([80, 81, 82]),
    '81 is also of two',
  )
  t.equal(ports.ports.find(({ port }) => port === 80)?.name, 'http')

  t.throws(() => applyServerSide(third, object({ c: '4' }, {}), by('one')), {
    code: 409,
    message: 'Apply failed with 1 conflict: conflict with "two" using v1: .metadata.labels.c',
  })
  const forced = applyServerSide(third, object({ a: '1', c: '4' }, {}), by('one', true))
  t.match(forced.metadata.labels, { c: '4' })
  // The former owner does not remove fields that another manager took over.
  const left = applyServerSide(forced, object({}, { ports: [{ port: 82 }] }), by('two'))
  t.match(left.metadata.labels, { c: '4' })
  t.end()
})

void t.test('server-side apply: a selector is of one manager, as a whole', (t) => {
  const first = applyServerSide(undefined, object({}, { selector: { app: 'a' } }), by('one'))
  const other = object({}, { selector: { tier: 'x' } })
  t.throws(() => applyServerSide(first, other, by('two')), {
    message: 'Apply failed with 1 conflict: conflict with "one" using v1: .spec.selector',
  })
  t.strictSame(applyServerSide(first, other, by('two', true))['spec'], { selector: { tier: 'x' } })
  t.end()
})

void t.test('server-side apply: fields of an object without managers cause conflicts', (t) => {
  const old = object({ a: '1' }, { type: 'ClusterIP' })
  const same = applyServerSide(old, object({ a: '1' }, {}), by('one'))
  t.match(same, { metadata: { labels: { a: '1' } }, spec: { type: 'ClusterIP' } })
  t.throws(() => applyServerSide(old, object({ a: '2' }, {}), by('one')), /before-first-apply/)
  t.end()
})

void t.test('field sets survive storing and reading', (t) => {
  const fields = new Set(
    fieldsOf(
      object(
        { 'x.y/z': '1' },
        { ports: [{ port: 80, name: 'a' }], selector: {}, externalIPs: ['1.1.1.1'] },
      ),
    ).keys(),
  )
  const stored = toFieldsV1(fields)
  t.match(stored, {
    'f:spec': { 'f:ports': { 'k:{"port":80,"protocol":"TCP"}': { '.': {}, 'f:name': {} } } },
  })
  t.strictSame(fromFieldsV1(stored), fields)
  t.end()
})
