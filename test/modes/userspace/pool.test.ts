/** Worker threads that die take their listeners with them, and nothing else. */
import { once } from 'node:events'
import { connect, createServer } from 'node:net'
import t from 'tap'
import { KernelError } from '../../../lib/errors.js'
import { DescriptorBudget } from '../../../lib/modes/userspace/descriptors.js'
import { Listeners } from '../../../lib/modes/userspace/listeners.js'
import { WorkerPool } from '../../../lib/modes/userspace/pool.js'
import type { ListenerSpec } from '../../../lib/modes/userspace/datapath.js'

const host = '127.0.0.1'
const meter = { count() {}, gauge() {}, observe() {}, forget() {} }

t.test('a worker that dies is replaced, and its listeners are opened again', async (t) => {
  const endpoint = createServer((socket) => socket.end('here')).listen(0, host)
  await once(endpoint, 'listening')
  const address = endpoint.address()
  const port = typeof address === 'object' && address ? address.port : 0
  const target = { key: `${host}:${port}`, ip: host, port }
  const specOf = (name: string, protocol: 'TCP' | 'UDP'): ListenerSpec => ({
    key: `IPv4 default/${name}/${protocol} cluster`,
    service: `default/${name}`,
    protocol,
    address: host,
    port: 0,
    endpoints: [target],
    servingKeys: [],
    affinityMs: undefined,
    udpIdleMs: 250,
  })
  const specs = ['a', 'b', 'c', 'd'].map((name) => specOf(name, 'TCP'))
  const udp = specOf('e', 'UDP')
  const lost: string[] = []
  const pool = new WorkerPool(
    {
      workers: 2,
      dataPath: 'net',
      passiveHealth: false,
      accessLog: false,
      descriptors: DescriptorBudget.allocate(100),
    },
    {
      ready: () => undefined,
      counts: () => undefined,
      access: () => undefined,
      warning: () => undefined,
      lost: (_reason, isGone) => {
        lost.push(...specs.map(({ key }) => key).filter(isGone))
        listeners.forget(isGone)
      },
    },
  )
  const listeners = new Listeners(pool, { range: undefined, meter, closed: () => undefined })
  t.teardown(async () => {
    await pool.close(0)
    endpoint.close()
  })
  t.same(await listeners.ensure([...specs, udp]), [])
  const ports = () => specs.map(({ key }) => listeners.portOf(key) ?? 0)
  t.same(await Promise.all(ports().map(ask)), ['here', 'here', 'here', 'here'])

  // Nothing that is planned looks like this; it stands for any mistake of ours.
  const poison = { ...udp, servingKeys: 1 } as unknown as ListenerSpec
  await t.rejects(pool.change({ open: [], update: [poison], close: [] }), KernelError)
  t.ok(lost.length > 0 && lost.length < specs.length, `${lost.length} listeners went with it`)
  const survivors = specs.filter(({ key }) => !lost.includes(key))
  for (const { key } of survivors) {
    t.equal(await ask(listeners.portOf(key) ?? 0), 'here', 'those of the other worker go on')
  }
  t.same(await listeners.ensure(specs), [])
  t.same(await Promise.all(ports().map(ask)), ['here', 'here', 'here', 'here'])
})

async function ask(port: number): Promise<string> {
  const socket = connect({ host, port })
  const [data] = (await once(socket, 'data')) as [Buffer]
  socket.destroy()
  return data.toString()
}
