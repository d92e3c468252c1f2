import { once } from 'node:events'
import { connect, createServer, type AddressInfo } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import type { Answered } from '../../../lib/lab/world/agent-protocol.js'
import { startAgent } from '../../../lib/lab/world/agent.js'
import { runCommand } from '../../support/run-command.js'
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

t.test('who serves is told of every request that is answered, but of no probe', async (t) => {
  const agent = startAgent()
  t.teardown(() => agent.close())
  const port = await freePort()
  const told: Answered[] = []
  const protocols = ['TCP', 'UDP'] as const
  const server = { name: 'web', addresses: [host], ports: [port], protocols }
  await agent.serve(server, (answered) => told.push(...answered))
  for (const protocol of protocols) {
    for (const isProbe of [true, false]) {
      const [answer] = await agent.flow({ protocol, host, port, isProbe })
      t.equal(answer?.backend, 'web')
    }
  }
  await fetch(`http://${host}:${port}/${'long'.repeat(1000)}`)
  await agent.stopServing('web')
  const at = `${host}:${port}`
  t.match(told, [
    { protocol: 'TCP', source: /^127\.0\.0\.1:\d+$/, at, line: '' },
    { protocol: 'UDP', source: /^127\.0\.0\.1:\d+$/, at, line: '' },
    { protocol: 'TCP', source: /^127\.0\.0\.1:\d+$/, at, line: /^GET \/longlong/ },
  ])
  t.equal(told.length, 3)
  t.equal(told[2]?.line.length, 200, 'no line is as long as its client likes')
})

t.test(
  'who never ends a request is closed; what follows an answered one is not read',
  async (t) => {
    const agent = startAgent()
    t.teardown(() => agent.close())
    const port = await freePort()
    const told: Answered[] = []
    const server = { name: 'web', addresses: [host], ports: [port], protocols: ['TCP'] } as const
    await agent.serve(server, (answered) => told.push(...answered))
    const megabyte = 'x'.repeat(1024 * 1024)
    for (const begin of ['', 'POST / HTTP/1.1\r\nlong: ']) {
      const socket = connect(port, host).resume()
      const closed = new Promise<boolean>((resolve) =>
        socket.on('error', () => undefined).on('close', () => resolve(true)),
      )
      socket.write(begin + megabyte + megabyte)
      t.ok(
        await Promise.race([closed, delay(300_000, false, { ref: false })]),
        `begins with '${begin}'`,
      )
      socket.destroy()
    }
    const answered = connect(port, host)
    let answer = ''
    answered.setEncoding('latin1').on('data', (text: string) => (answer += text))
    answered.end(`POST / HTTP/1.1\r\n\r\n${megabyte.repeat(3)}`)
    await once(answered, 'close')
    await agent.stopServing('web')
    t.equal(told.length, 1)
    t.match(answer, /^HTTP\/1\.1 200 OK\r\n[^]*web answers/)
  },
)

t.test('of a flood of requests the newest are reported', async (t) => {
  const agent = startAgent()
  t.teardown(() => agent.close())
  const port = await freePort()
  let [messages, told] = [0, 0]
  const server = { name: 'web', addresses: [host], ports: [port], protocols: ['TCP'] } as const
  await agent.serve(server, (answered) => {
    messages++
    told += answered.length
  })
  const flood = connect(port, host)
  flood.end('ask\n'.repeat(10_000)).resume()
  await once(flood, 'close')
  await agent.stopServing('web')
  t.ok(told >= 1000, `${told}`)
  t.ok(messages < 100 && told < 10_000, `${messages} messages, ${told} requests`)
})

for (const [what, script] of Object.entries({
  'a gauge whose thread has just begun': `
    const { NodeGauge } = await import('LIB/lab/playground/node-gauge.js')
    const thread = new NodeGauge({ metrics: 'http://127.0.0.1:1', health: 'http://127.0.0.1:1' })`,
  'an agent whose answer has come, but is not read yet': `
    const { startAgent } = await import('LIB/lab/world/agent.js')
    const thread = startAgent()
    await thread.forget('one')
    void thread.forget('another')
    await null
    for (const end = Date.now() + 300; Date.now() < end; );`,
})) {
  t.test(`a process waits for the end of ${what}`, async (t) => {
    const lib = new URL('../../../lib', import.meta.url).href
    const lines = `${script.replaceAll('LIB', lib)}\nawait thread.close()\nconsole.log('closed')`
    const argv = ['--input-type=module', '--eval', lines]
    const { stdout, stderr } = await runCommand(process.execPath, argv)
    t.equal(stdout, 'closed\n', stderr)
  })
}
