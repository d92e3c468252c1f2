import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { createApiServer } from '../../lib/lab/apiserver/server.js'
import { textAt, type JsonObject } from '../../lib/lab/apiserver/json.js'
import { apiEvents, type ProxyEvent } from '../../lib/observe/events.js'
import { ApiClient } from '../../lib/sources/api-client.js'
import { openCluster } from '../../lib/sources/cluster-access.js'

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
  const events = apiEvents({
    post: (path, body) => client.create(path, body, controller.signal),
    nodeName: 'node-1',
    log: recorder().log,
  })
  events.record(starting)
  events.record({
    ...starting,
    type: 'Warning',
    note: 'x'.repeat(5000),
    regarding: { kind: 'Service', namespace: 'kube-system', name: 'dns' },
  })
  const list = () => api.list({ apiVersion: 'v1', kind: 'Event' })
  while (list().length < 2) await delay(5)
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
  t.equal(textAt(service, 'message').length, 1024)
})

void t.test('a refused event is logged and dropped, and too many are not sent', async (t) => {
  const sent: JsonObject[] = []
  let time = 0
  const { lines, log } = recorder()
  const events = apiEvents({
    post: (_path, body) => {
      sent.push(body as JsonObject)
      return Promise.reject(new Error('no right to do so'))
    },
    nodeName: 'node-1',
    log,
    now: () => time,
    burst: 3,
    perMinute: 2,
  })
  for (let count = 0; count < 5; count++) events.record(starting)
  while (lines.length < 5) await delay(1)
  t.equal(sent.length, 3)
  t.equal(lines.filter((line) => line.includes('no right to do so')).length, 3)
  t.equal(lines.filter((line) => line.includes('too many events')).length, 2)
  time = 30_000
  events.record(starting)
  events.record(starting)
  while (lines.length < 7) await delay(1)
  t.equal(sent.length, 4, 'two a minute come back')
})

void t.test(
  'events are sent one after the other, and do not pile up if the server hangs',
  async (t) => {
    const ends: (() => void)[] = []
    const { lines, log } = recorder()
    const post = () => new Promise<void>((resolve) => ends.push(resolve))
    const events = apiEvents({ post, nodeName: 'n', log, burst: 2, perMinute: 1e9, now: Date.now })
    for (let count = 0; count < 4; count++) {
      events.record(starting)
      await delay(1)
    }
    t.equal(ends.length, 1, 'the second waits for the first')
    t.equal(lines.filter((line) => line.includes('too many events')).length, 2)
    ends[0]?.()
    while (ends.length < 2) await delay(1)
  },
)
