import t from 'tap'
import { DepartedFlows } from '../../lib/sync/departed-flows.js'
import { parseEndpointSlice } from '../../lib/state/parse-endpoint-slice.js'
import { parseService } from '../../lib/state/parse-service.js'
import { Tracker } from '../../lib/state/tracker.js'
import { endpoint, rawService, rawSlice, plainNode } from '../state/objects.js'

const silent = { debug() {}, info() {}, warn() {}, error() {} }
const flowOf = (destination: string, answeredBy: string) => ({
  ...{ family: 'IPv4' as const, destination, answeredBy },
  ...{ tuple: Buffer.alloc(0), zone: undefined },
})

/** A Service whose endpoints change, and a record of the deleted flows. */
function node(policy: string) {
  const tracker = new Tracker(plainNode)
  const annotations = { 'kube-proxy-ts/on-endpoint-removal': policy }
  const service = parseService(rawService({ annotations }))
  if (service.outcome !== 'accepted') throw new Error(service.reason)
  tracker.upsertService(service.value)
  const flows = [
    flowOf('10.96.0.10:80', '10.244.0.1:8080'),
    flowOf('10.96.0.10:80', '10.244.0.2:8080'),
    flowOf('10.96.0.99:80', '10.244.0.1:8080'),
  ]
  const deleted: string[] = []
  let heard: () => void = () => undefined
  const departed = new DepartedFlows({
    table: () => ({
      delete: (_family, { isStale }) => {
        const stale = flows.filter(isStale)
        deleted.push(...stale.map((flow) => `${flow.destination} ${flow.answeredBy}`))
        heard()
        return Promise.resolve({ deleted: stale.length, left: 0 })
      },
    }),
    log: silent,
  })
  const apply = (...ips: readonly string[]) => {
    const slice = parseEndpointSlice(rawSlice({ endpoints: ips.map((ip) => endpoint(ip)) }))
    if (slice.outcome !== 'accepted') throw new Error('refused')
    tracker.upsertEndpointSlice(slice.value)
    for (const state of tracker.take().states) departed.applied(state)
  }
  const next = () => new Promise<void>((resolve) => (heard = resolve))
  return { apply, deleted, next }
}

const [one, two, three] = ['10.244.0.1', '10.244.0.2', '10.244.0.3'] as const

t.test('flows of the Service to the endpoint that left go, and no others', async (t) => {
  const { apply, deleted, next } = node('reset-after=1s')
  apply(one, two)
  const heard = next()
  // This timer keeps the process alive, because the timer of a departure does not.
  const alive = setInterval(() => undefined, 1000)
  apply(two)
  t.same(deleted, [], 'not at once')
  await heard
  clearInterval(alive)
  t.same(deleted, ['10.96.0.10:80 10.244.0.1:8080'])
})

t.test('an endpoint that comes back in time keeps its flows', async (t) => {
  const { apply, deleted, next } = node('reset-after=1s')
  apply(one, two, three)
  const alive = setInterval(() => undefined, 1000)
  apply(two, three)
  apply(one, two, three)
  const heard = next()
  apply(one, three)
  await heard
  clearInterval(alive)
  t.same(deleted, ['10.96.0.10:80 10.244.0.2:8080'])
})
