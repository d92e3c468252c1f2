import { once } from 'node:events'
import { connect, createServer, type AddressInfo } from 'node:net'
import t from 'tap'
import { selfSigned } from '../../lib/lab/apiserver/certificate.js'
import { openDashboard } from '../../lib/page/dashboard/run.js'
import { modeLoaders } from '../../lib/modes/registry.js'
import { Metrics } from '../../lib/observe/metrics.js'
import { PageServer } from '../../lib/page/server.js'
import { testConfig } from '../support/states.js'
import { until, untilTrue } from '../support/until.js'

void t.test(
  'a taken port of the dashboard is tried again, as after a take-over, and told once',
  async (t) => {
    const other = createServer().listen(0, '127.0.0.1')
    await once(other, 'listening')
    const { port } = other.address() as AddressInfo
    const told: string[] = []
    const tell = (_fields: object, message: string) => void told.push(message)
    const definition = await modeLoaders.userspace()
    const dashboard = await openDashboard({
      address: { host: '127.0.0.1', port },
      files: { tokenFile: '', tlsCertFile: '', tlsKeyFile: '' },
      mode: 'userspace',
      nodeName: 'node-1',
      current: () => ({ config: testConfig, planner: definition.planner(testConfig) }),
      metrics: new Metrics({ mode: 'userspace' }),
      flows: undefined,
      log: { debug: () => {}, info: tell, warn: tell, error: tell },
    })
    const stop = new AbortController()
    const ended = dashboard.run(stop.signal)
    await untilTrue(() => told.length > 0)
    other.close()
    const page = () => fetch(`http://127.0.0.1:${port}/`).catch(() => undefined)
    await untilTrue(async () => (await page())?.status === 200)
    const head = await fetch(`http://127.0.0.1:${port}/`, { method: 'HEAD' })
    t.equal(head.status, 200, 'as `curl -I` and probes ask')
    t.strictSame(told, ['the dashboard cannot be opened, will retry', 'dashboard'])
    stop.abort()
    await ended
  },
)

void t.test('a client in the middle of a TLS handshake does not delay the end', async (t) => {
  const { certificate, key } = selfSigned(['127.0.0.1'])
  const access = {
    ...{ host: '127.0.0.1', fallsForward: false, refusal: () => undefined },
    tls: { cert: Buffer.from(certificate), key: Buffer.from(key) },
  }
  const source = { view: () => ({}) as never, subscribe: () => () => undefined }
  const isSoon = async () => {
    const page = await PageServer.listen(source, 0, access)
    const client = connect(Number(new URL(page.url).port), '127.0.0.1').on('error', () => undefined)
    await once(client, 'connect')
    // Such a client has 10 s. One that has just connected may not be accepted yet.
    client.write(Buffer.from([22, 3, 1]))
    await new Promise((resolve) => setTimeout(resolve, 100))
    const began = performance.now()
    await page.close()
    client.destroy()
    return performance.now() - began < 5000
  }
  // A busy machine may need longer once, but a delayed end is never soon.
  await until('an end that waits for nobody', isSoon)
  t.pass('it comes soon')
})
