import { setTimeout as delay } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { pause } from '../../lib/async.js'
import { createApiServer } from '../../lib/lab/apiserver/server.js'
import { textAt, type JsonObject } from '../../lib/lab/apiserver/json.js'
import { ApiEvents, type ProxyEvent } from '../../lib/observe/events.js'
import { ApiClient } from '../../lib/sources/api-client.js'
import { openCluster } from '../../lib/sources/cluster-access.js'
import { untilTrue } from '../support/until.js'

const starting: ProxyEvent = {
  type: 'Normal',
  reason: 'Starting',
  action: 'StartKubeProxy',
  note: '',
  regarding: { kind: 'Node', namespace: '', name: 'node-1' },
}

function recorder() {
  const lines: string[] = []
  const write = (fields: object, message: string) => {
    lines.push(`${message} ${JSON.stringify(fields)}`)
  }
  return { lines, log: { debug: write, info: write, warn: write, error: write } }
}

void t.test('EV01 EV06: events reach the API in the group events.k8s.io', async (t) => {
  const api = createApiServer({ runtime: undefined })
  const controller = new AbortController()
  const running = api.run(controller.signal)
  t.teardown(async () => {
    controller.abort()
    await running
  })
  const access = await openCluster({ kubeconfig: '', master: await api.listening() })
  const client = new ApiClient(access, 'test')
  const events = new ApiEvents({
    ...{ client, nodeName: 'node-1', log: recorder().log, meter: { count: () => undefined } },
  })
  const sending = events.run(controller.signal)
  t.teardown(async () => {
    controller.abort()
    await sending
  })
  const { metadata } = api.put({
    ...{ apiVersion: 'v1', kind: 'Service', metadata: { namespace: 'kube-system', name: 'dns' } },
    spec: { clusterIP: '10.96.0.10', ports: [{ port: 53 }] },
  })
  events.record(starting)
  events.record({
    ...starting,
    type: 'Warning',
    note: 'xä€😀'.repeat(500),
    regarding: { kind: 'Service', namespace: 'kube-system', name: 'dns' },
  })
  const list = () => api.list({ apiVersion: 'v1', kind: 'Event' })
  await untilTrue(() => list().length >= 2)
  const [node, service] = list()
  t.match(node, {
    metadata: { namespace: 'default', name: /^node-1\.[0-9a-f]{16}$/ },
    involvedObject: { kind: 'Node', name: 'node-1', uid: 'node-1', apiVersion: 'v1' },
    reason: 'Starting',
    action: 'StartKubeProxy',
    type: 'Normal',
    eventTime: /\.\d{6}Z$/,
    reportingComponent: 'kube-proxy',
    reportingInstance: 'kube-proxy-node-1',
  })
  t.match(service, { metadata: { namespace: 'kube-system' }, involvedObject: { name: 'dns' } })
  t.equal(textAt(service, 'involvedObject', 'uid'), metadata.uid, 'kubectl describe asks for it')
  // A cut inside a character would leave a replacement for it, and in front of the last 3 bytes
  // there is room for 102 repetitions and one letter.
  t.equal(textAt(service, 'message'), `${'xä€😀'.repeat(102)}x…`)
})

/** Events that go into a list, at times that pass as fast as somebody waits. */
function fakeApi(t: Test, rate: { readonly burst: number; readonly perMinute: number }) {
  const sent: { note: string; reason: string; minute: number }[] = []
  const { lines, log } = recorder()
  const counted: string[] = []
  const controller = new AbortController()
  let time = 0
  const api = { post: (): Promise<string | undefined> => Promise.resolve(undefined) }
  const events = new ApiEvents({
    client: {
      create: (_path, body) => {
        const note = textAt(body as JsonObject, 'note')
        const reason = textAt(body as JsonObject, 'reason')
        sent.push({ note, reason, minute: time / 60_000 })
        return api.post()
      },
      uidOf: () => Promise.resolve(undefined),
    },
    ...{ nodeName: 'node-1', log, ...rate, now: () => time },
    meter: { count: (name) => void counted.push(name) },
    sleep: (ms, signal, bell) => {
      if (ms === Infinity) return pause(ms, signal, bell)
      time += ms
      return Promise.resolve()
    },
  })
  const start = () => {
    const running = events.run(controller.signal)
    t.teardown(() => {
      controller.abort()
      return running
    })
  }
  const add = (reason: string, note: string, name = 'web') =>
    events.record({
      ...{ type: 'Warning', reason, action: 'Sync', note },
      regarding: { kind: 'Service', namespace: 'shop', name },
    })
  const count = async (wanted: number) => {
    await untilTrue(() => sent.length >= wanted)
  }
  return { api, sent, lines, counted, start, add, count }
}

void t.test('a refused event is logged and dropped', async (t) => {
  const { api, sent, lines, counted, start, add, count } = fakeApi(t, { burst: 9, perMinute: 1 })
  api.post = () => Promise.resolve('no right to do so')
  start()
  for (const note of ['a', 'b', 'c']) add('AddressInUse', note)
  await count(3)
  await delay(1)
  t.equal(lines.filter((line) => line.includes('no right to do so')).length, 3)
  t.equal(sent.length, 3)
  t.same(counted, Array(3).fill('events_left_out_total'))
})

void t.test('events wait for a server that is away, and for two minutes at most', async (t) => {
  const { api, sent, lines, counted, start, add, count } = fakeApi(t, { burst: 9, perMinute: 12 })
  const away = () => Promise.reject(new Error('connection refused'))
  let left = 3
  api.post = () => (left-- > 0 ? away() : Promise.resolve(undefined))
  start()
  add('AddressInUse', 'a')
  add('AddressInUse', 'b')
  await count(5)
  t.equal(sent.map(({ note }) => note).join(''), 'aaaab', 'in their order, each once')
  t.same(lines, [])
  api.post = away
  add('AddressInUse', 'c')
  await untilTrue(() => counted.length !== 0)
  t.equal(sent.length, 5 + 12)
  t.match(lines, [/Event not sent/])
  const [first, last] = [sent[5]?.minute ?? 0, sent.at(-1)?.minute ?? 0]
  t.ok(last - first > 1.3 && last - first < 2.4, `${last - first} minutes`)
})

void t.test('what is beyond the rate waits, and none of it is lost', async (t) => {
  const { sent, lines, start, add, count } = fakeApi(t, { burst: 25, perMinute: 12 })
  start()
  for (let index = 0; index < 83; index++) add('PartLeftOut', `annotation ${index}`)
  await count(83)
  t.same(
    sent.map(({ note }) => note),
    Array.from({ length: 83 }, (_, index) => `annotation ${index}`),
  )
  t.equal(sent.filter(({ minute }) => minute === 0).length, 25)
  const last = sent.at(-1)?.minute ?? 0
  t.ok(last > 4.8 && last < 4.9, `58 at 12 a minute, the last after ${last} minutes`)
  t.same(lines, [])
})

void t.test('complaints about objects do not keep an endpoint that fails waiting', async (t) => {
  const { sent, start, add, count } = fakeApi(t, { burst: 2, perMinute: 1 })
  for (let index = 0; index < 10; index++) add('PartLeftOut', `annotation ${index}`)
  for (const name of ['a', 'b', 'c']) add('EndpointFailing', name, name)
  start()
  await count(13)
  const order = sent.map(({ reason, note }) => (reason === 'PartLeftOut' ? '.' : note)).join('')
  t.equal(order, 'a.b.c........', 'they take turns')
})

void t.test('the newest state of a Service takes the place of one that waits', async (t) => {
  const { sent, start, add, count } = fakeApi(t, { burst: 2, perMinute: 1 })
  add('EndpointFailing', '9 of 10 work')
  add('EndpointFailing', '9 of 9 work', 'other')
  add('EndpointFailing', '8 of 10 work')
  add('PartLeftOut', 'one fault')
  add('PartLeftOut', 'another fault')
  add('PartLeftOut', 'one fault')
  add('AddressInUse', 'the end')
  start()
  await count(5)
  const notes = ['8 of 10 work', 'one fault', '9 of 9 work', 'another fault', 'the end']
  t.same(
    sent.map(({ note }) => note),
    notes,
  )
})

void t.test('a server that hangs gets one event, and at most 1000 of a lane wait', async (t) => {
  const { api, sent, lines, counted, start, add, count } = fakeApi(t, { burst: 1, perMinute: 1 })
  let answer: () => void = () => undefined
  api.post = () => new Promise((resolve) => (answer = () => resolve(undefined)))
  start()
  add('PartLeftOut', 'first')
  await count(1)
  for (let index = 0; index < 1005; index++) add('PartLeftOut', `annotation ${index}`)
  add('EndpointFailing', 'has room of its own')
  t.equal(sent.length, 1, 'the second waits for the first')
  t.equal(lines.filter((line) => line.startsWith('too many Events wait')).length, 1)
  t.same(
    counted,
    Array.from({ length: 5 }, () => 'events_left_out_total'),
  )
  api.post = () => Promise.resolve(undefined)
  answer()
  await count(1002)
  await delay(1)
  t.equal(sent.length, 1002)
  t.equal(sent[1]?.note, 'has room of its own')
})
