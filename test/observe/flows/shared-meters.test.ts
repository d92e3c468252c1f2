import t from 'tap'
import { Metrics } from '../../../lib/observe/metrics.js'
import { sharedMeters } from '../../../lib/observe/flows/shared-meters.js'

t.test('what one caller forgets stays while the other one counts it', async (t) => {
  const metrics = new Metrics({ mode: 'ebpf', process: false })
  const [one, other] = sharedMeters(metrics)
  const web = { service: 'default/web:http', protocol: 'TCP' }
  const at = (endpoint: string) => ({ ...web, endpoint })
  const numbers = async () => {
    const names = ['service_active_connections', 'service_connections_total']
    const all = await metrics.readSeries(names)
    return all.map(({ label, value }) => `${label('endpoint') || 'open'} ${value}`)
  }
  one.gauge('service_active_connections', web, 1)
  one.count('service_connections_total', at('a:1'), 5)
  one.count('service_connections_total', at('b:1'))
  other.gauge('service_active_connections', web, 2)
  other.count('service_connections_total', at('a:1'))
  other.count('service_connections_total', at('c:1'))
  t.same(await numbers(), ['open 3', 'a:1 6', 'b:1 1', 'c:1 1'])
  other.forget(at('a:1'))
  other.forget(at('c:1'))
  t.same(await numbers(), ['open 3', 'a:1 6', 'b:1 1'])
  one.forget(web)
  t.same(await numbers(), ['open 2'], 'without what the other one has forgotten before')
  other.forget(web)
  t.same(await numbers(), [])
})
