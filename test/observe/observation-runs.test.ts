import { once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'
import t from 'tap'
import { Bell } from '../../lib/async.js'
import { configWith } from '../../lib/config/load.js'
import { RunningConfig } from '../../lib/config/running.js'
import { ApiEvents } from '../../lib/observe/events.js'
import { createLogger } from '../../lib/observe/logger.js'
import { Metrics } from '../../lib/observe/metrics.js'
import { Observation } from '../../lib/observe/observation.js'
import { endpointCheckOf } from '../../lib/state/endpoint-check.js'
import type { PortHealth } from '../../lib/sources/health/health-checks.js'
import { untilTrue } from '../support/until.js'

t.test('a failing endpoint becomes an Event that is sent', async (t) => {
  const sent: string[] = []
  const log = createLogger({
    ...{ format: 'json', verbosity: 0, isTerminal: false, write: () => undefined },
  })
  const config = configWith({ healthzBindAddress: '', metricsBindAddress: '' })
  const metrics = new Metrics({ mode: 'iptables', process: false })
  const post = async (_path: string, body: object) => {
    sent.push(JSON.stringify(body))
    return undefined
  }
  const observation = new Observation({
    ...{ running: new RunningConfig({ config, origins: new Map() }), metrics, log },
    ...{ mode: 'iptables', nodeName: 'n1', version: '', startedAt: 0, families: ['IPv4'] },
    tracker: { node: undefined },
    ...{ syncPeriodMs: 30_000, expectsNode: false },
    events: new ApiEvents({
      client: { create: post, uidOf: () => Promise.resolve(undefined) },
      ...{ nodeName: 'n1', log, meter: metrics },
    }),
  })
  const stop = new AbortController()
  const running = observation.run(stop.signal)
  const check = endpointCheckOf({ 'health-check': 'tcp' }, 'TCP')
  if (!check) throw new Error('no check')
  const health: PortHealth = {
    port: { namespace: 'shop', name: 'web', port: 'http', protocol: 'TCP' },
    ...{ family: 'IPv4', check, checked: 2, failing: new Map([['a', 'refused']]) },
  }
  observation.endpoints.followed('IPv4 shop/web:http/TCP', health)
  observation.endpoints.turned(health, [{ endpoint: 'a', reason: 'refused' }])
  await untilTrue(() => sent.length >= 3)
  t.match(sent[0], /"reason":"Starting"/)
  t.match(sent[1], /"reason":"ModeNotSet".*set --proxy-mode/)
  t.match(sent[2], /: a \(refused\) fails; 1 of 2 endpoints works"/)
  stop.abort()
  await running
})

t.test('a port that another process gives up rings the bell', async (t) => {
  const other = createServer().listen(0, '127.0.0.1')
  await once(other, 'listening')
  const { port } = other.address() as AddressInfo
  let written = ''
  const log = createLogger({
    ...{ format: 'json', verbosity: 0, isTerminal: false },
    write: (text) => (written += text),
  })
  const config = configWith({ healthzBindAddress: `127.0.0.1:${port}`, metricsBindAddress: '' })
  const portFreed = new Bell()
  const observation = new Observation({
    ...{ running: new RunningConfig({ config, origins: new Map() }), log, portFreed },
    ...{ metrics: new Metrics({ mode: 'iptables', process: false }), events: { record() {} } },
    ...{ mode: 'iptables', nodeName: 'n1', version: '', startedAt: 0, families: ['IPv4'] },
    tracker: { node: undefined },
    ...{ syncPeriodMs: 30_000, expectsNode: false },
  })
  const stop = new AbortController()
  const running = observation.run(stop.signal)
  await untilTrue(() => written.includes('health server cannot start'))
  t.notOk(portFreed.isRung)
  other.close()
  await untilTrue(() => written.includes('health server listens'))
  t.ok(portFreed.isRung)
  stop.abort()
  await running
})
