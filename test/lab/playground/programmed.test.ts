import t from 'tap'
import { createApiServer } from '../../../lib/lab/apiserver/server.js'
import { HiddenCounts } from '../../../lib/lab/playground/counters.js'
import { parseDaemonLine } from '../../../lib/lab/playground/timeline.js'
import { Programmed } from '../../../lib/lab/playground/programmed.js'
import { state, service } from '../../support/states.js'

/** A cluster whose daemon logs what the test tells it to. */
function opened() {
  const api = createApiServer({ runtime: undefined })
  const programmed = new Programmed(api.registry.store)
  programmed.follow()
  const put = (name: string, labels: Readonly<Record<string, string>> = {}) => {
    const spec = { ports: [{ port: 80 }] }
    const { metadata } = api.put({
      ...{ apiVersion: 'v1', kind: 'Service', spec },
      metadata: { name, namespace: 'default', labels },
    })
    return { namespace: 'default', name, resourceVersion: metadata.resourceVersion }
  }
  const say = (msg: string, fields: object = {}) => {
    const text = JSON.stringify({ time: '2026-01-01T00:00:00Z', msg, family: 'IPv4', ...fields })
    const line = parseDaemonLine(text)
    if (line) programmed.daemonSaid(line)
  }
  const receive = (object: object) => say('object received', { kind: 'Service', ...object })
  const sync = () => {
    say('sync begins')
    say('sync measured')
  }
  return { api, programmed, put, say, receive, sync }
}
const states = [1, 2, 3].map((endpoints) => state([service({ endpoints })])) as [
  ReturnType<typeof state>,
  ReturnType<typeof state>,
  ReturnType<typeof state>,
]

t.test('a state counts once a sync has ended that began after its last object came', async (t) => {
  const { programmed, put, say, receive, sync } = opened()
  const one = put('one')
  programmed.want(states[0])
  t.equal(programmed.state, undefined)
  receive(one)
  t.equal(programmed.state, undefined)
  say('sync begins')
  t.equal(programmed.state, undefined)
  const two = put('two')
  programmed.want(states[1])
  receive(two)
  say('sync measured')
  t.equal(programmed.state, states[0], 'what came during the sync is for the next one')
  sync()
  t.equal(programmed.state, states[1])
})

t.test('objects that go count as well, and a new daemon has nothing', async (t) => {
  const { api, programmed, put, say, receive, sync } = opened()
  const one = put('one')
  receive(one)
  sync()
  programmed.want(states[0])
  t.equal(programmed.state, states[0], 'known already')
  api.remove({ apiVersion: 'v1', kind: 'Service', namespace: 'default', name: 'one' })
  programmed.want(states[1])
  sync()
  t.equal(programmed.state, states[0])
  say('object removed', { kind: 'Service', ...one })
  sync()
  t.equal(programmed.state, states[1])
  say('Starting')
  t.equal(programmed.state, undefined)
})

t.test('an object that the daemon never hears of keeps nothing waiting', async (t) => {
  const { programmed, put, receive, sync } = opened()
  const one = put('one')
  put('other', { 'service.kubernetes.io/service-proxy-name': 'another' })
  programmed.want(states[0])
  receive(one)
  sync()
  t.equal(programmed.state, states[0])
})

t.test('own connections are taken out of counters, also of rules that are new', async (t) => {
  const hidden = new HiddenCounts()
  t.same(hidden.without({ first: 10, second: 4 }), { first: 10, second: 4 })
  hidden.passed(['first', 'second'])
  hidden.passed(['first'])
  t.same(hidden.without({ first: 12, second: 5 }), { first: 10, second: 4 })
  t.same(hidden.without({ first: 20, second: 5 }), { first: 18, second: 4 })
  hidden.passed(['first', 'second', 'third'])
  t.same(
    hidden.without({ first: 21, second: 1, third: 1 }),
    { first: 18, second: 0, third: 0 },
    'the second was written anew before',
  )
  t.same(hidden.without({ first: 22, second: 3, third: 2 }), { first: 19, second: 2, third: 1 })
  hidden.passed(['third'])
  t.equal(hidden.without({ third: 0 })['third'], 0)
  t.equal(hidden.without({ third: 9 })['third'], 9, 'it was written anew after they had passed')
})

t.test('own connections that are reported late are taken out when they are', async (t) => {
  const hidden = new HiddenCounts()
  const shown = (first: number) => hidden.without({ first }, { areReported: true })['first']
  hidden.passed(['first'])
  t.equal(shown(1), 0)
  hidden.passed(['first'])
  t.equal(shown(1), 0, 'the second is not reported yet')
  t.equal(shown(102), 100)
  hidden.passed(['first'])
  t.equal(shown(3), 2, 'the proxy counts from zero again')
})
