import { createServer as createHttpServer } from 'node:http'
import { createServer, type Socket } from 'node:net'
import { once } from 'node:events'
import t from 'tap'
import { CheckThread } from '../../../lib/sources/health/check-thread.js'
import { HealthChecks } from '../../../lib/sources/health/health-checks.js'
import { parseEndpointSlice } from '../../../lib/state/parse-endpoint-slice.js'
import { parseService } from '../../../lib/state/parse-service.js'
import { Tracker } from '../../../lib/state/tracker.js'
import type { EndpointTurn, PortHealth } from '../../../lib/sources/health/health-checks.js'
import { endpoint, rawService, rawSlice, plainNode } from '../../state/objects.js'
import { untilTrue } from '../../support/until.js'

/** A tracker and its checks, connected as in the daemon. */
function node() {
  const tracker = new Tracker({ ...plainNode, endpointRules: { allowsLoopback: true } })
  const followed: [string, number | undefined][] = []
  const turns: EndpointTurn[] = []
  let failing: PortHealth['failing'] = new Map()
  let counted = 0
  const checks = new HealthChecks({
    checker: (options) => new CheckThread(options),
    tracker,
    requestSync: () => sync(),
    listener: {
      followed: (key: string, health: PortHealth | undefined) =>
        followed.push([key, health?.checked]),
      turned: (health, its) => {
        failing = health.failing
        turns.push(...its)
      },
      counted: ({ good, bad }) => (counted += good + bad),
      threadEnded: (reason) => t.fail(reason),
    },
  })
  const sync = () => checks.started(tracker.take())
  const put = (port: number, ips: readonly string[], check = 'tcp') => {
    const annotations = {
      'kube-proxy-ts/health-check': check,
      'kube-proxy-ts/health-check-interval': '500ms',
      'kube-proxy-ts/health-check-fall': '1',
      'kube-proxy-ts/health-check-rise': '1',
    }
    const service = parseService(rawService({ annotations }))
    const raw = rawSlice({
      ports: [{ name: 'http', protocol: 'TCP', port }],
      endpoints: ips.map((ip) => endpoint(ip)),
    })
    const slice = parseEndpointSlice(raw, { allowsLoopback: true })
    if (service.outcome !== 'accepted' || slice.outcome !== 'accepted') throw new Error('refused')
    tracker.upsertService(service.value)
    tracker.upsertEndpointSlice(slice.value)
    sync()
  }
  const used = () => {
    const [service] = tracker.take().states[0]?.services.values() ?? []
    return service?.clusterEndpoints.map(({ ip }) => ip)
  }
  const reasons = () => [...failing.values()]
  return { tracker, checks, put, used, turns, followed, sync, reasons, counted: () => counted }
}

/**
 * Reads, so that a connection that a check ends with a FIN ends here too. A check that runs when its
 * thread ends leaves its socket to the end of the process, so the process does not wait for it.
 */
const takeConnection = (socket: Socket) =>
  socket
    .on('error', () => undefined)
    .resume()
    .unref()

t.test('an endpoint that goes leaves the state, and is back when it answers again', async (t) => {
  const server = createServer(takeConnection)
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  const port = typeof address === 'object' && address ? address.port : 0
  const stop = new AbortController()
  const { checks, put, used, turns, followed, tracker, sync, counted } = node()
  const running = checks.run(stop.signal)
  put(port, ['127.0.0.1', '127.0.0.2'])
  t.same(used(), ['127.0.0.1', '127.0.0.2'], 'until something fails, all are used')
  await untilTrue(() => turns.length === 1)
  t.same(turns.splice(0), [{ endpoint: `127.0.0.2:${port}`, reason: 'connection refused' }])
  t.same(used(), ['127.0.0.1'])
  await untilTrue(() => counted() > 0)

  const second = createServer(takeConnection)
  second.listen(port, '127.0.0.2')
  await untilTrue(() => turns.length === 1)
  t.same(turns.splice(0), [{ endpoint: `127.0.0.2:${port}`, reason: undefined }])
  t.same(used(), ['127.0.0.1', '127.0.0.2'])
  second.close()
  await untilTrue(() => turns.length === 1)

  put(port, ['127.0.0.1'])
  put(port, ['127.0.0.1', '127.0.0.2'])
  t.same(used(), ['127.0.0.1', '127.0.0.2'], 'an endpoint that comes anew has no past')
  tracker.removeService('default', 'web')
  sync()
  t.same(followed.at(-1), ['IPv4 default/web:http/TCP', undefined])
  stop.abort()
  await running
  server.close()
})

t.test(
  'an endpoint that fails for another reason shows that one, and turns no second time',
  async (t) => {
    let status = 500
    let holdsAnswers = false
    const server = createHttpServer((_request, response) => {
      if (!holdsAnswers) response.writeHead(status).end()
    })
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    const address = server.address()
    const port = typeof address === 'object' && address ? address.port : 0
    const stop = new AbortController()
    const { checks, put, turns, reasons } = node()
    const running = checks.run(stop.signal)
    put(port, ['127.0.0.1'], 'http:/')
    await untilTrue(() => turns.length === 1)
    t.same(reasons(), ['answers with status 500'])
    status = 404
    await untilTrue(() => reasons()[0] === 'answers with status 404')
    t.equal(turns.length, 1)
    // The next check is still running when its thread ends.
    holdsAnswers = true
    await once(server, 'request')
    stop.abort()
    await running
    server.close().closeAllConnections()
  },
)
