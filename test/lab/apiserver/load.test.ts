import t from 'tap'
import { fill, keepChanging, parseLoad } from '../../../lib/lab/apiserver/load.js'
import { createApiServer } from '../../../lib/lab/apiserver/server.js'
import type { NewObject } from '../../../lib/lab/apiserver/object.js'
import { isEqual } from '../../../lib/state/json.js'
import { parseEndpointSlice } from '../../../lib/state/parse-endpoint-slice.js'
import { blockFor } from '../../support/block.js'

t.test(
  'a load is so many Services times so many endpoints, within the addresses there are',
  (t) => {
    t.same(parseLoad('5000x10'), { services: 5000, endpoints: 10 })
    t.same(parseLoad('1x0'), { services: 1, endpoints: 0 })
    t.same(parseLoad('60000x76'), { services: 60_000, endpoints: 76 })
    for (const wrong of [
      '',
      '5000',
      'x10',
      '0x10',
      '-1x10',
      '60001x1',
      '60000x77',
      '5x5x5',
      '5 x 5',
    ]) {
      t.equal(parseLoad(wrong), undefined, wrong)
    }
    t.end()
  },
)

t.test('the server takes the load, and each address is there once', (t) => {
  const api = createApiServer({ runtime: undefined })
  fill(api, { services: 300, endpoints: 120 })
  const list = (apiVersion: string, kind: string) => api.list({ apiVersion, kind })
  const slices = list('discovery.k8s.io/v1', 'EndpointSlice').map((raw) => parseEndpointSlice(raw))
  const endpoints = slices.flatMap((slice) =>
    slice.outcome === 'accepted' ? slice.value.endpoints.map(({ ip }) => ip) : [],
  )
  const services = list('v1', 'Service').filter(({ metadata }) => metadata.name !== 'kubernetes')
  t.equal(services.length, 300)
  t.equal(slices.length, 600, 'no slice has more than a hundred')
  t.equal(endpoints.length, 300 * 120)
  t.equal(new Set(endpoints).size, endpoints.length)
  t.end()
})

t.test('each change replaces one endpoint of a slice', async (t) => {
  const slices = new Map<string, NewObject>()
  const replaced: number[] = []
  const stop = new AbortController()
  const ipsOf = (raw: NewObject | undefined) => {
    const slice = parseEndpointSlice(raw)
    return slice.outcome === 'accepted' ? slice.value.endpoints.map(({ ip }) => ip) : []
  }
  const load = { services: 3, endpoints: 10 }
  const target = {
    put(object: NewObject) {
      if (object.kind !== 'EndpointSlice') return
      const name = JSON.stringify(object.metadata['name'])
      const before = slices.get(name)
      slices.set(name, object)
      if (before === undefined) return
      t.notOk(isEqual(before, object))
      const old = new Set(ipsOf(before))
      replaced.push(ipsOf(object).filter((ip) => !old.has(ip)).length)
      // The load has replaced all addresses and put them back.
      if (replaced.length === 70) stop.abort()
    },
  }
  fill(target, load)
  const made = await keepChanging(target, load, { perSecond: 10_000 }, stop.signal)
  t.equal(made, replaced.length)
  t.ok(replaced.length >= 70)
  t.ok(replaced.every((count) => count === 1))
})

t.test('more changes than the machine can make leave time for requests', async (t) => {
  const stop = new AbortController()
  let isLate = false
  let turns = 0
  const timer = setInterval(() => {
    if (isLate && ++turns === 5) stop.abort()
  }, 1)
  const target = {
    put: () => blockFor(2),
  }
  const late = () => (isLate = true)
  const changing = { perSecond: 100_000, late }
  const made = await keepChanging(target, { services: 3, endpoints: 10 }, changing, stop.signal)
  clearInterval(timer)
  t.equal(turns, 5, 'others have turns')
  t.ok(made > 0)
})
