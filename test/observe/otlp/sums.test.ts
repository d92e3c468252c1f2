import t from 'tap'
import { Sums } from '../../../lib/observe/otlp/sums.js'

t.test('a sum of a Service keeps what endpoints had that are forgotten', (t) => {
  const sums = new Sums()
  let at = 0
  const read = (counts: Readonly<Record<string, number>>) => {
    const series = Object.entries(counts).map(([endpoint, value]) => {
      const labels = new Map(Object.entries({ service: 'd/web', protocol: 'TCP', endpoint }))
      const label = (name: string) => labels.get(name) ?? ''
      return { name: 'service_connections_total', value, label }
    })
    return sums.points(series, ++at).map(({ value, since }) => [value, since])
  }
  t.same(read({ a: 7, b: 7 }), [[0, 1]], 'counted by the process before')
  t.same(read({ a: 1007, b: 7 }), [[1000, 1]])
  t.same(read({ b: 7 }), [[1000, 1]], 'an endpoint is forgotten')
  t.same(read({ b: 8, c: 500 }), [[1501, 1]], 'another one comes')
  t.same(read({ b: 8, c: 3 }), [[1504, 1]], 'one was forgotten and came back')
  t.same(read({}), [])
  t.same(read({ c: 5 }), [[5, 6]], 'the Service was gone')
  t.end()
})
