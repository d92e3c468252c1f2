/** What schedulers, weights and removals do to connections and packets. */
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import t from 'tap'
import { mode } from '../../../lib/modes/ipvs/index.js'
import { schedulers } from '../../../lib/state/known-annotations.js'
import { service, states, type EndpointSpec } from '../../support/states.js'
import { ask, connect, context, create, hasScheduler, nothing, table } from './node.js'

/** Makes connections one after the other, and counts those that each endpoint answered. */
async function tally(count: number): Promise<Record<string, number>> {
  const answers: Record<string, number> = {}
  for (let made = 0; made < count; made++) {
    const socket = await connect()
    const answer = await ask(socket)
    answers[answer] = (answers[answer] ?? 0) + 1
    socket.destroy()
  }
  return answers
}

const weighted = (scheduler: string, first: number, second: number) =>
  service({
    options: { 'ipvs-scheduler': scheduler },
    endpoints: [
      { ip: '10.180.0.1', weight: first },
      { ip: '10.180.0.2', weight: second },
    ],
  })

await t.test(
  'IP03: a Service chooses its scheduler, and weights distribute connections',
  async (t) => {
    const running = await create({ 'ipvs.scheduler': 'rr' })
    const cluster = states().put(weighted('rr', 3, 1))
    let last = running.plan(cluster.take())
    await running.apply(last)
    t.strictSame(await tally(20), { '10.180.0.1': 10, '10.180.0.2': 10 }, 'rr knows no weights')
    const change = async (spec: ReturnType<typeof weighted>) => {
      const next = running.plan(cluster.put(spec).take())
      t.strictSame((await running.apply(next)).failed, [])
      last = next
    }
    await change(weighted('wrr', 3, 1))
    t.match(table()[0], '-s wrr', 'changed in place')
    t.strictSame(await tally(40), { '10.180.0.1': 30, '10.180.0.2': 10 })
    await change(weighted('wrr', 1, 4))
    t.strictSame(await tally(40), { '10.180.0.1': 8, '10.180.0.2': 32 })
    await change(weighted('sh', 1, 1))
    t.equal(Object.keys(await tally(10)).length, 1, 'sh goes by the client')
    await change(weighted('nonsense; reboot', 1, 1))
    t.strictSame(await tally(20), { '10.180.0.1': 10, '10.180.0.2': 10 }, 'no name of a scheduler')
    await running.close()
    await mode.cleanup(context)
  },
)

await t.test(
  'IP04: a scheduler of the node that this kernel lacks is named with its module',
  { skip: hasScheduler('twos') && 'this kernel has every scheduler' },
  async (t) => {
    await t.rejects(create({ 'ipvs.scheduler': 'twos' }), {
      name: 'KernelError',
      kind: 'unsupported',
      message: /scheduler twos: .*modprobe ip_vs_twos/,
    })
    t.strictSame(table(), [])
  },
)

await t.test('IP26: connections are kept and drain with every scheduler', async (t) => {
  const running = await create()
  const both = ['10.180.0.1', '10.180.0.2']
  const cluster = states()
  const write = async (scheduler: string, endpoints: readonly string[]) => {
    const spec = service({ options: { 'ipvs-scheduler': scheduler }, endpoints })
    t.strictSame((await running.apply(running.plan(cluster.put(spec).take()))).failed, [])
  }
  for (const scheduler of schedulers) {
    const skip = hasScheduler(scheduler) ? false : 'this kernel does not have it'
    await t.test(scheduler, { skip }, async (t) => {
      await write(scheduler, both)
      t.match(table()[0], `-s ${scheduler}`)
      const socket = await connect()
      const served = await ask(socket)
      await write(
        scheduler,
        both.filter((ip) => ip !== served),
      )
      const line = table().find((each) => each.includes(`-r ${served}:`))
      if (scheduler === 'dh') t.equal(line, undefined, 'it has no weights, so nothing drains')
      else {
        t.match(line, '-w 0')
        t.equal(await ask(socket), served, 'the connection lives')
      }
      const fresh = await connect()
      t.not(await ask(fresh), served, 'and new ones go elsewhere')
      for (const each of [socket, fresh]) each.destroy()
    })
  }
  await running.close()
  await mode.cleanup(context)
})

await t.test('IP27: a removed UDP endpoint is deleted at once', async (t) => {
  for (const last of [1, 2]) {
    const server = createSocket('udp4')
    server.on('message', (_, { port, address }) => {
      server.send(`10.180.0.${last}`, port, address)
    })
    server.bind(8080, `10.180.0.${last}`)
    await once(server, 'listening')
    t.teardown(() => server.close())
  }
  const client = createSocket('udp4')
  client.on('error', nothing)
  t.teardown(() => client.close())
  const send = async (patienceMs = 600_000) => {
    client.send('?')
    const signal = AbortSignal.timeout(patienceMs)
    const [answer] = (await once(client, 'message', { signal })) as [Buffer]
    return answer.toString()
  }
  const both: readonly EndpointSpec[] = [{ ip: '10.180.0.1' }, { ip: '10.180.0.2' }]
  const dns = service({ protocol: 'UDP', endpoints: both })
  const running = await create()
  const cluster = states().put(dns)
  const first = running.plan(cluster.take())
  await running.apply(first)
  client.connect(80, '10.96.0.10')
  await once(client, 'connect')
  const served = await send()
  t.equal(await send(), served, 'a flow keeps its endpoint')
  const left = both.filter(({ ip }) => ip !== served)
  await running.apply(running.plan(cluster.put({ ...dns, endpoints: left }).take()))
  t.notMatch(table().join('\n'), `-r ${served}:`)
  // The first packet after the removal only ends the flow. The next one starts a new flow.
  const next = await send(1000).catch(() => send())
  t.equal(next, left[0]?.ip)
  await running.close()
  await mode.cleanup(context)
})
