import t from 'tap'
import { endpoint, rawSlice } from '../state/objects.js'
import { PodNames } from '../../lib/sources/pod-names.js'
import { watchedSink, type ObjectSink } from '../../lib/sources/source.js'

function reading() {
  const heard: string[] = []
  const sink: ObjectSink = {
    upsert: (kind) => heard.push(`upsert ${kind}`),
    remove: (kind, namespace, name) => heard.push(`remove ${kind} ${namespace}/${name}`),
    synced: (kind) => heard.push(`synced ${kind}`),
    failed: (message) => heard.push(message),
  }
  const names = new PodNames()
  return { names, heard, along: watchedSink(sink, [names]) }
}

const slice = (name: string, service: string, ...pods: readonly (readonly [string, unknown])[]) =>
  rawSlice({
    name,
    service,
    endpoints: pods.map(([ip, targetRef]) => ({ ...endpoint(ip), targetRef })),
  })
const pod = (name: string) => ({ kind: 'Pod', name })

t.test('pod names follow the slices, and the next sink gets all objects', async (t) => {
  const { names, heard, along } = reading()
  along.upsert('EndpointSlice', slice('a', 'web', ['10.0.0.1', pod('web-1')]))
  along.upsert('EndpointSlice', slice('b', 'web', ['fd00:0:0::2', pod('web-2')]))
  along.upsert('EndpointSlice', slice('c', 'other', ['10.0.0.1', pod('other-1')]))
  t.same(
    [...names.of('default/web')],
    [
      ['10.0.0.1', 'web-1'],
      ['fd00::2', 'web-2'],
    ],
  )
  t.same([...names.of('default/other')], [['10.0.0.1', 'other-1']])
  along.upsert('EndpointSlice', slice('a', 'other', ['10.0.0.3', pod('other-3')]))
  t.same([...names.of('default/web')], [['fd00::2', 'web-2']], 'a label may change')
  along.remove('EndpointSlice', 'default', 'b')
  t.equal(names.of('default/web').size, 0)
  along.upsert('Service', {})
  along.synced('Service')
  along.failed('x')
  t.same(heard.slice(4), [
    'remove EndpointSlice default/b',
    'upsert Service',
    'synced Service',
    'x',
  ])
})

t.test('an address has a name as long as one of its slices is there', (t) => {
  const { names, along } = reading()
  along.upsert('EndpointSlice', slice('a', 'web', ['10.0.0.1', pod('web-1')]))
  along.upsert('EndpointSlice', slice('b', 'metrics', ['10.0.0.1', pod('web-1')]))
  along.remove('EndpointSlice', 'default', 'b')
  t.equal(names.at('10.0.0.1'), 'default/web-1')
  along.upsert('EndpointSlice', slice('c', 'web', ['10.0.0.1', pod('web-2')]))
  along.upsert('EndpointSlice', slice('d', 'web', ['10.0.0.1', pod('web-3')]))
  along.remove('EndpointSlice', 'default', 'c')
  t.equal(names.at('10.0.0.1'), 'default/web-3', 'the newest name holds')
  along.remove('EndpointSlice', 'default', 'd')
  t.equal(names.at('10.0.0.1'), 'default/web-1')
  along.remove('EndpointSlice', 'default', 'a')
  t.equal(names.at('10.0.0.1'), '')
  t.end()
})

t.test('thousands of Services may have one pod', (t) => {
  const { names, heard, along } = reading()
  const count = 20_000
  const put = (index: number) =>
    along.upsert(
      'EndpointSlice',
      slice(`s${index}`, `s${index}`, ['10.0.0.1', pod(`web-${index}`)]),
    )
  for (let index = 0; index < count; index++) put(index)
  along.remove('EndpointSlice', 'default', 's0')
  put(1)
  t.equal(heard.length, count + 2, 'every object is handed on')
  t.equal(names.at('10.0.0.1'), 'default/web-1')
  along.remove('EndpointSlice', 'default', 's1')
  t.equal(names.at('10.0.0.1'), `default/web-${count - 1}`)
  t.end()
})

t.test('an endpoint that is no pod, or has no slice, has no name', async (t) => {
  const { names, along } = reading()
  const odd = [
    ['10.0.0.1', undefined],
    ['10.0.0.2', { kind: 'Node', name: 'n' }],
    ['10.0.0.3', { kind: 'Pod', name: 7 }],
    ['not an address', pod('x')],
  ] as const
  along.upsert('EndpointSlice', slice('a', 'web', ...odd))
  for (const raw of [undefined, 'text', [], { metadata: 1 }, { endpoints: [null] }]) {
    along.upsert('EndpointSlice', raw)
  }
  t.equal(names.of('default/web').size, 0)
})

t.test('a name cannot reorder the text around it', async (t) => {
  const { names, along } = reading()
  along.upsert('EndpointSlice', slice('a', 'web', ['10.0.0.1', pod('a\u202eb\u001b[31m')]))
  t.equal(names.at('10.0.0.1'), 'default/a\\u202eb\\u001b[31m')
  t.same([...names.of('default/web').values()], ['a\\u202eb\\u001b[31m'])
})
