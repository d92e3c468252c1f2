import { once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { startAgent } from '../../../lib/lab/world/agent.js'
import { freePort } from '../../support/free-port.js'

const host = '127.0.0.1'

async function listening() {
  const server = createServer().listen(0, host)
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  return { port, close: () => once(server.close(), 'close') }
}

t.test('a port that is given back a moment later is waited for', async (t) => {
  const agent = startAgent()
  t.teardown(() => agent.close())
  const { port, close } = await listening()
  const serving = agent.serve({
    name: 'late',
    addresses: [host],
    ports: [port],
    protocols: ['TCP'],
  })
  await Promise.all([serving, delay(100).then(close)])
  const [answer] = await agent.flow({ protocol: 'TCP', host, port })
  t.equal(answer?.backend, 'late')
})

t.test('servers that cannot start all leave no port behind', async (t) => {
  const agent = startAgent()
  t.teardown(() => agent.close())
  const taken = await listening()
  t.teardown(() => taken.close())
  const free = await freePort()
  const both = { addresses: [host], ports: [free, taken.port], protocols: ['TCP', 'UDP'] as const }
  await t.rejects(agent.serve({ name: 'both', ...both }), { message: /EADDRINUSE/ })
  await agent.serve({ name: 'one', ...both, ports: [free] })
  const [answer] = await agent.flow({ protocol: 'TCP', host, port: free })
  t.equal(answer?.backend, 'one')
})

t.test('what asks by HTTP is answered by HTTP, with who answers and whom it sees', async (t) => {
  const agent = startAgent()
  t.teardown(() => agent.close())
  const port = await freePort()
  await agent.serve({ name: 'web', addresses: [host], ports: [port], protocols: ['TCP'] })
  const ask = (init: RequestInit) => fetch(`http://${host}:${port}/any/path`, init)
  for (const init of [{}, { method: 'POST', body: 'a\n\nb\n' }]) {
    const response = await ask(init)
    t.equal(response.status, 200)
    t.equal(await response.text(), `web answers ${host}\n`)
  }
  t.equal(await (await ask({ method: 'HEAD' })).text(), '')
})
