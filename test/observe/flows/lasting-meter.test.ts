import t from 'tap'
import { setTimeout as sleep } from 'node:timers/promises'
import { FlowThread } from '../../../lib/observe/flows/flow-thread.js'
import { LastingMeter } from '../../../lib/observe/flows/lasting-meter.js'

const web = { service: 'default/web:http', protocol: 'TCP' } as const
const place = {
  id: 'web',
  family: 'IPv4',
  port: 80,
  addresses: ['10.96.0.10'],
  nodePort: 0,
} as const

t.test('where the mode carries connections, the numbers of an endpoint that left go', async (t) => {
  const kernel = { hearsConnections: false, onlyTranslated: true, refusalGroup: undefined }
  const thread = new FlowThread({ ...kernel, stateFile: '', startedAt: 0 }, () => undefined)
  thread.tell({ kind: 'services', set: [{ ...place, ...web }], removed: [], localAddresses: [] })
  const gauges: number[] = []
  const silent = () => undefined
  const gauge = (_name: string, _labels: object, value: number) => gauges.push(value)
  const rest = { count: silent, gauge, observe: silent, forget: silent }
  const meter = new LastingMeter(rest, (growth) => thread.tell({ kind: 'carried', ...growth }))
  const at = (endpoint: string) => ({ ...web, endpoint })
  const opened = (endpoint: string) => meter.count('service_connections_total', at(endpoint))
  const numbers = async () => {
    // What the meter has counted becomes one message.
    await sleep(0)
    const { grown = [], left = [] } = (await thread.numbers([])) ?? {}
    return { grown: grown.map(({ endpoint }) => endpoint), left }
  }
  for (const endpoint of ['one:80', 'two:80']) opened(endpoint)
  meter.gauge('service_active_connections', web, 3)
  t.same(await numbers(), { grown: ['one:80', 'two:80'], left: [] })
  meter.forget(at('one:80'))
  t.same(await numbers(), { grown: [], left: [at('one:80')] })
  t.same(gauges, [3], 'connections of other endpoints are open as before')
  t.same(await numbers(), { grown: [], left: [] }, 'told once')
  meter.forget(at('two:80'))
  opened('two:80')
  t.same(await numbers(), { grown: ['two:80'], left: [] }, 'another listener counts there')
  opened('two:80')
  await sleep(0)
  meter.forget(at('two:80'))
  t.same(await numbers(), { grown: ['two:80'], left: [] }, 'its last numbers are told first')
  t.same(await numbers(), { grown: [], left: [at('two:80')] })
  await thread.stop()
})
