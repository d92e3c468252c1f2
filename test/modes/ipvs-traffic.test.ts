import t from 'tap'
import { KernelError } from '../../lib/errors.js'
import type { ListedRealServer, ListedServer, TrafficStats } from '../../lib/kernel/ipvs.js'
import { ipvsPlanner } from '../../lib/modes/ipvs/plan.js'
import { serverText } from '../../lib/modes/ipvs/resource.js'
import { Traffic } from '../../lib/modes/ipvs/traffic.js'
import { Metrics } from '../../lib/observe/metrics.js'
import { service, states, testSettings } from '../support/states.js'

const stats = (connections: number): TrafficStats => ({
  connections: BigInt(connections),
  inPackets: BigInt(connections * 5),
  outPackets: BigInt(connections * 4),
  inBytes: BigInt(connections * 500),
  outBytes: BigInt(connections * 9000),
})

/** A kernel that has only counters: the connections of each real server, and the open ones. */
class CountingKernel {
  readonly servers = new Map<string, { server: ListedServer; reals: Map<string, number> }>()
  active = 0
  /** Virtual servers that were read in detail. */
  readonly looks: string[] = []

  serve(ip: string, port: number, reals: Readonly<Record<string, number>>): void {
    const total = Object.values(reals).reduce((sum, one) => sum + one, 0)
    const server: ListedServer = {
      ...{ family: 'IPv4', protocol: 'TCP', ip, port, scheduler: 'rr' },
      ...{ schedulerFlags: 0, persistenceSeconds: 0, stats: stats(total) },
    }
    this.servers.set(serverText(server), { server, reals: new Map(Object.entries(reals)) })
  }

  listServers = () => Promise.resolve([...this.servers.values()].map(({ server }) => server))

  listRealServers = (address: Parameters<typeof serverText>[0]) => {
    const text = serverText(address)
    this.looks.push(text)
    const reals = this.servers.get(text)?.reals ?? new Map<string, number>()
    return Promise.resolve(
      Array.from(reals, ([ip, connections]): ListedRealServer => ({
        ...{ ip, port: 8080, weight: 1, stats: stats(connections) },
        ...{ activeConnections: this.active, inactiveConnections: 7 },
      })),
    )
  }
}

function setup() {
  const kernel = new CountingKernel()
  const metrics = new Metrics({ mode: 'ipvs', process: false })
  const warnings: string[] = []
  const nothing = () => undefined
  const log = {
    ...{ debug: nothing, info: nothing, error: nothing },
    warn: (_fields: object, message: string) => void warnings.push(message),
  }
  const traffic = new Traffic({ ipvs: kernel, context: { meter: metrics, log } })
  const planner = ipvsPlanner(testSettings)
  const web = service({ nodePort: 30080, endpoints: ['10.180.0.1', '10.180.0.2'] })
  const plans = [planner(states().put(web).take())]
  metrics.beforePage(() => traffic.read(plans))
  const lines = async (about: string) => {
    const { body } = await metrics.page()
    return body.split('\n').filter((line) => line.startsWith(`kubeproxy_${about}`))
  }
  return { kernel, plans, lines, warnings, planner, traffic }
}

const labels = (endpoint: string) =>
  `service="default/web:http",protocol="TCP",endpoint="${endpoint}"`

void t.test('traffic of all addresses of a service port adds up by endpoint', async (t) => {
  const { kernel, lines } = setup()
  kernel.serve('10.96.0.10', 80, { '10.180.0.1': 3, '10.180.0.2': 1 })
  kernel.serve('192.0.2.1', 30080, { '10.180.0.1': 2 })
  kernel.serve('198.51.100.9', 443, { '10.180.0.1': 50 })
  kernel.active = 1
  t.strictSame(await lines('service_connections_total{'), [
    `kubeproxy_service_connections_total{${labels('10.180.0.1:8080')}} 5`,
    `kubeproxy_service_connections_total{${labels('10.180.0.2:8080')}} 1`,
  ])
  t.strictSame(await lines('service_bytes_total{'), [
    `kubeproxy_service_bytes_total{${labels('10.180.0.1:8080')},direction="to_endpoint"} 2500`,
    `kubeproxy_service_bytes_total{${labels('10.180.0.1:8080')},direction="to_client"} 45000`,
    `kubeproxy_service_bytes_total{${labels('10.180.0.2:8080')},direction="to_endpoint"} 500`,
    `kubeproxy_service_bytes_total{${labels('10.180.0.2:8080')},direction="to_client"} 9000`,
  ])
  t.match(await lines('service_packets_total{'), { length: 4 })
  t.match(await lines('service_active_connections{'), [/} 3$/])
})

void t.test('traffic is counted once, and a new real server starts at zero', async (t) => {
  const { kernel, lines } = setup()
  const count = async () => (await lines('service_connections_total{'))[0]?.split(' ')[1]
  kernel.serve('10.96.0.10', 80, { '10.180.0.1': 3 })
  t.equal(await count(), '3')
  t.equal(await count(), '3')
  kernel.serve('10.96.0.10', 80, { '10.180.0.1': 10 })
  t.equal(await count(), '10')
  kernel.serve('10.96.0.10', 80, { '10.180.0.1': 2 })
  t.equal(await count(), '12', 'it was removed and came back')
})

void t.test('only virtual servers with new traffic are read in detail', async (t) => {
  const { kernel, lines } = setup()
  kernel.serve('10.96.0.10', 80, { '10.180.0.1': 3 })
  kernel.serve('192.0.2.1', 30080, { '10.180.0.1': 0 })
  await lines('')
  t.strictSame(kernel.looks, ['10.96.0.10:80/TCP'], 'nobody used the other yet')
  await lines('')
  t.equal(kernel.looks.length, 1, 'nothing new')
  kernel.active = 1
  kernel.serve('10.96.0.10', 80, { '10.180.0.1': 4 })
  await lines('')
  kernel.active = 0
  t.match(await lines('service_active_connections{'), [/} 0$/], 'open ones end without traffic')
  t.equal(kernel.looks.length, 3)
})

void t.test('counters of a deleted Service are removed; a failure is a warning', async (t) => {
  const { kernel, plans, lines, warnings, planner } = setup()
  kernel.serve('10.96.0.10', 80, { '10.180.0.1': 3 })
  t.match(await lines('service_'), { length: 6 })
  plans[0] = planner(states().take())
  kernel.servers.clear()
  t.strictSame(await lines('service_'), [])
  kernel.listServers = () => Promise.reject(new KernelError('busy', 'list virtual servers'))
  t.strictSame(await lines('service_'), [])
  t.strictSame(warnings, ['could not read the traffic of ipvs servers'])
})

void t.test('a Service that takes an address over gets its traffic from then on', async (t) => {
  const { kernel, plans, lines, planner } = setup()
  kernel.serve('10.96.0.10', 80, { '10.180.0.1': 3 })
  kernel.active = 1
  await lines('')
  plans[0] = planner(
    states()
      .put(service({ portName: 'web', endpoints: ['10.180.0.1'] }))
      .take(),
  )
  t.strictSame(await lines('service_'), [
    'kubeproxy_service_active_connections{service="default/web:web",protocol="TCP"} 1',
  ])
  kernel.serve('10.96.0.10', 80, { '10.180.0.1': 5 })
  t.match(await lines('service_connections_total{'), [/="default\/web:web".* 2$/])
})

void t.test('two requests at the same time share one reading', async (t) => {
  const { kernel, plans, traffic } = setup()
  kernel.serve('10.96.0.10', 80, { '10.180.0.1': 3 })
  await Promise.all([traffic.read(plans), traffic.read(plans)])
  t.equal(kernel.looks.length, 1)
})
