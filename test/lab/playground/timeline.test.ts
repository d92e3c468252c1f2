import t from 'tap'
import {
  changeSeen,
  syncMeasured,
  Timeline,
  type DaemonLine,
} from '../../../lib/lab/playground/timeline.js'
import { createApiServer } from '../../../lib/lab/apiserver/server.js'
import { untilTrue } from '../../support/until.js'

/**
 * A pod becomes ready at 1000 and is listed at 1001. `act` says what the daemon logs, and when. At the end a
 * connection reaches the pod, or none does.
 */
async function follow(
  act: (say: (message: string, at: number, sync?: object) => void) => void,
  isReached = true,
) {
  const api = createApiServer({ runtime: undefined })
  let now = 1000
  let land: () => void = () => undefined
  const landed = new Promise<boolean>((resolve) => (land = () => resolve(isReached)))
  const timeline = new Timeline({
    store: api.registry.store,
    now: () => now,
    isOfInterest: ({ metadata }) => metadata.name === 'web-1',
    reach: () => landed,
    changed: () => undefined,
  })
  const stops = timeline.follow()
  const ready = (name: string, podIP: string) =>
    api.put({
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { name, namespace: 'default' },
      spec: { containers: [{ name: 'web', image: 'x' }] },
      status: { podIP, conditions: [{ type: 'Ready', status: 'True' }] },
    })
  // No connection to the Service could ever reach this one.
  ready('hello-1', '10.0.0.2')
  ready('web-1', '10.0.0.1')
  now = 1001
  api.put({
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { name: 'web-1', namespace: 'default' },
    addressType: 'IPv4',
    endpoints: [{ addresses: ['10.0.0.1'], conditions: { ready: true } }],
  })
  const none = { kind: '', namespace: '', name: '', version: 0 }
  const line: DaemonLine = { at: 0, message: '', family: 'IPv4', planMs: 1, applyMs: 2, ...none }
  act((message, at, sync = {}) => timeline.daemonSaid({ ...line, message, at, ...sync }))
  now = 2020
  land()
  const steps = () => new Map(timeline.view?.steps.map(({ name, atMs }) => [name, atMs]))
  await untilTrue(() => steps().has('first connection') || timeline.view?.note !== '')
  for (const stop of stops) stop()
  return steps()
}

t.test('the last sync before the first connection counts', async (t) => {
  const steps = await follow((say) => {
    say(changeSeen, 990)
    // These two belong to an earlier change, and are too early to include the pod.
    say(changeSeen, 1002)
    say(syncMeasured, 1006)
    say(changeSeen, 1007)
    // The tool of this sync has not ended when the connection arrives at 2020.
    say(syncMeasured, 2021, { applyMs: 10 })
    // This sync is too late to count.
    say(syncMeasured, 2500)
  })
  t.same(
    [...steps],
    [
      ['pod ready', 0],
      ['EndpointSlice', 1],
      ['watch event', 7],
      ['sync', 1010],
      ['plan', 1011],
      ['kernel', 1020],
      ['first connection', 1020],
    ],
  )
})

t.test('lines of another IP family and earlier lines do not count', async (t) => {
  const steps = await follow((say) => {
    say(changeSeen, 1002)
    say(syncMeasured, 995)
    say(syncMeasured, 1003, { family: 'IPv6' })
    say(syncMeasured, 1010)
  })
  t.equal(steps.get('kernel'), 10)
  t.equal(steps.get('watch event'), 2)
})

t.test('a pod that no connection reaches was written by the first sync', async (t) => {
  const steps = await follow((say) => {
    say(changeSeen, 1020)
    say(syncMeasured, 1040)
    // The pod that it replaces is gone.
    say(changeSeen, 2500)
    say(syncMeasured, 2520)
  }, false)
  t.same(
    [...steps],
    [
      ['pod ready', 0],
      ['EndpointSlice', 1],
      ['watch event', 20],
      ['sync', 37],
      ['plan', 38],
      ['kernel', 40],
    ],
  )
})
