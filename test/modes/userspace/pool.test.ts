/** Worker threads that die take their listeners with them, and nothing else. */
import { once } from 'node:events'
import { connect, createServer } from 'node:net'
import t from 'tap'
import { KernelError } from '../../../lib/errors.js'
import { DescriptorBudget } from '../../../lib/modes/userspace/datapath/descriptors.js'
import { Listeners } from '../../../lib/modes/userspace/listeners/listeners.js'
import { WorkerPool } from '../../../lib/modes/userspace/listeners/pool.js'
import type { ListenerSpec, Target } from '../../../lib/modes/userspace/datapath/datapath.js'
import type { Test } from 'tap'

const host = '127.0.0.1'
const meter = { count() {}, gauge() {}, observe() {}, forget() {} }

t.test('many listeners at once: each opens, gets its new endpoints, and closes', async (t) => {
  const [here, there] = [await answering(t, 'here'), await answering(t, 'there')]
  const names = Array.from({ length: 70 }, (_, index) => `s${index}`)
  const specs = (...endpoints: readonly Target[]) =>
    names.map((name) => ({ ...specOf(name, 'TCP'), endpoints }))
  const { listeners } = createPool(t)
  t.same(await listeners.ensure(specs(here)), [])
  const open = specs(here).map(({ key }) => key)
  const ports = open.map((key) => listeners.portOf(key) ?? 0)
  const answers = async () => [...new Set(await Promise.all(ports.map(ask)))]
  t.same(await answers(), ['here'])
  await listeners.ensure(specs(there))
  t.same(await answers(), ['there'])
  // The worker is told what changed since it was told last, not since the beginning.
  await listeners.ensure(specs(here))
  t.same(await answers(), ['here'])
  await listeners.close(open)
  const refused = await Promise.allSettled(ports.map(ask))
  t.ok(refused.every(({ status }) => status === 'rejected'))
})

t.test('a worker that dies is replaced, and its listeners are opened again', async (t) => {
  const target = await answering(t, 'here')
  const specs = ['a', 'b', 'c', 'd'].map((name) => ({
    ...specOf(name, 'TCP'),
    endpoints: [target],
  }))
  const udp = specOf('e', 'UDP')
  const lost: string[] = []
  const { pool, listeners } = createPool(t, (isGone) => {
    lost.push(...specs.map(({ key }) => key).filter(isGone))
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

function specOf(name: string, protocol: 'TCP' | 'UDP'): ListenerSpec {
  return {
    key: `IPv4 default/${name}/${protocol} cluster`,
    service: `default/${name}`,
    protocol,
    address: host,
    port: 0,
    endpoints: [],
    servingKeys: [],
    affinityMs: undefined,
    udpIdleMs: 250,
  }
}

/** An endpoint that says its name and ends. */
async function answering(t: Test, name: string): Promise<Target> {
  const server = createServer((socket) => socket.end(name)).listen(0, host)
  await once(server, 'listening')
  t.teardown(() => server.close())
  const address = server.address()
  const port = typeof address === 'object' && address ? address.port : 0
  return { key: `${host}:${port}`, ip: host, port }
}

function createPool(t: Test, lost: (isGone: (key: string) => boolean) => void = () => undefined) {
  const pool = new WorkerPool(
    {
      workers: 2,
      dataPath: 'net',
      passiveHealth: false,
      accessLog: false,
      descriptors: DescriptorBudget.allocate(1000),
    },
    {
      ready: () => undefined,
      counts: () => undefined,
      access: () => undefined,
      warning: () => undefined,
      lost: (_reason, isGone) => {
        lost(isGone)
        listeners.forget(isGone)
      },
    },
  )
  const listeners = new Listeners(pool, { range: undefined, meter, closed: () => undefined })
  t.teardown(() => pool.close(0))
  return { pool, listeners }
}

async function ask(port: number): Promise<string> {
  const socket = connect({ host, port })
  const [data] = (await once(socket, 'data')) as [Buffer]
  socket.destroy()
  return data.toString()
}
