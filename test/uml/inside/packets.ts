/** What schedulers, weights, removals and counters do to connections and packets. */
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { mode } from '../../../lib/modes/ipvs/index.js'
import { Metrics } from '../../../lib/observe/metrics.js'
import { service, states, type EndpointSpec } from '../../support/states.js'
import { ask, connect, context, create, nothing, table } from './node.js'

/** Who answered how many of so many connections, one after the other. */
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
  'IP03: a Service chooses its scheduler, and weights share out connections',
  async (t) => {
    const running = await create({ scheduler: 'rr' })
    const cluster = states().put(weighted('rr', 3, 1))
    let last = running.plan(cluster.take())
    await running.apply(last, undefined)
    t.strictSame(await tally(20), { '10.180.0.1': 10, '10.180.0.2': 10 }, 'rr knows no weights')
    const change = async (spec: ReturnType<typeof weighted>) => {
      const next = running.plan(cluster.put(spec).take())
      t.strictSame((await running.apply(next, last)).failed, [])
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
  'IP04: a node scheduler that this kernel lacks is named with its module',
  async (t) => {
    await t.rejects(create({ scheduler: 'twos' }), {
      name: 'KernelError',
      kind: 'unsupported',
      message: /scheduler twos: .*modprobe ip_vs_twos/,
    })
    t.strictSame(table(), [])
  },
)

await t.test('IP27: a UDP endpoint goes at once, and its client is served elsewhere', async (t) => {
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
  const send = async () => {
    client.send('?')
    const signal = AbortSignal.timeout(1000)
    const [answer] = (await once(client, 'message', { signal })) as [Buffer]
    return answer.toString()
  }
  const both: readonly EndpointSpec[] = [{ ip: '10.180.0.1' }, { ip: '10.180.0.2' }]
  const dns = service({ protocol: 'UDP', endpoints: both })
  const running = await create()
  const cluster = states().put(dns)
  const first = running.plan(cluster.take())
  await running.apply(first, undefined)
  client.connect(80, '10.96.0.10')
  await once(client, 'connect')
  const served = await send()
  t.equal(await send(), served, 'a flow keeps its endpoint')
  const left = both.filter(({ ip }) => ip !== served)
  await running.apply(running.plan(cluster.put({ ...dns, endpoints: left }).take()), first)
  t.notMatch(table().join('\n'), `-r ${served}:`)
  // The packet that finds the endpoint gone ends the flow; the one after it starts another.
  const next = await send().catch(send)
  t.equal(next, left[0]?.ip)
  await running.close()
  await mode.cleanup(context)
})

await t.test('traffic is told by Service port and endpoint, over a restart', async (t) => {
  const spec = service({ endpoints: ['10.180.0.1', '10.180.0.2'] })
  const begin = async () => {
    const metrics = new Metrics({ mode: 'ipvs', process: false })
    const running = await mode.create((await import('../../support/states.js')).testSettings, {
      ...context,
      meter: metrics,
    })
    metrics.beforePage(() => running.countTraffic?.())
    await running.apply(running.plan(states().put(spec).take()), undefined)
    const value = async (start: string) => {
      const { body } = await metrics.page()
      const line = body.split('\n').find((each) => each.startsWith(`kubeproxy_service_${start}`))
      return Number(line?.split(' ').at(-1))
    }
    return { running, value }
  }
  const connections = (last: number) =>
    `connections_total{service="default/web:http",protocol="TCP",endpoint="10.180.0.${last}:8080"}`
  const before = await begin()
  const ofBoth = async ({ value }: typeof before) => {
    // The kernel adds up its counters every two seconds.
    await sleep(5000)
    return [await value(connections(1)), await value(connections(2))]
  }
  // The kernel remembers real servers for a while, with what they have counted.
  await tally(2)
  const [first = NaN, second = NaN] = await ofBoth(before)
  await tally(10)
  const open = await connect()
  await ask(open)
  const [one = NaN, two = NaN] = await ofBoth(before)
  t.equal(one - first + two - second, 11)
  t.ok(Math.abs(one - first - (two - second)) === 1, 'rr')
  t.equal(await before.value('active_connections'), 1)
  const packets = await before.value('packets_total')
  t.ok(packets >= one * 4, `${packets} packets to the first endpoint`)
  t.ok((await before.value('bytes_total')) > packets * 40)
  await before.running.close()
  await tally(2)
  const after = await begin()
  t.strictSame(await ofBoth(after), [one + 1, two + 1], 'counted while no proxy ran')
  open.destroy()
  await after.running.close()
  await mode.cleanup(context)
})
