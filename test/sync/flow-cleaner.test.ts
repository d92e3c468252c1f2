import t from 'tap'
import { setImmediate as turn, setTimeout as delay } from 'node:timers/promises'
import { FlowCleaner } from '../../lib/sync/flow-cleaner.js'
import type { Conntrack } from '../../lib/kernel/conntrack.js'
import type { Log, Meter } from '../../lib/modes/mode.js'
import { service, states } from '../support/states.js'
import { untilTrue } from '../support/until.js'

const log: Log = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
}
const meter: Meter = {
  count: () => undefined,
  gauge: () => undefined,
  observe: () => undefined,
  forget: () => undefined,
}

/** A table whose cleanups a test releases one by one. Tests without `retryMs` are over before it. */
function cleanerWith(answers: (number | Error)[] = [], retryMs = 600_000) {
  const cleanings: string[] = []
  const gates: (() => void)[] = []
  let asked = 0
  const table: Pick<Conntrack, 'delete'> = {
    delete: async (family) => {
      cleanings.push(family)
      await new Promise<void>((resolve) => gates.push(resolve))
      const answer = answers.shift() ?? 0
      if (answer instanceof Error) throw answer
      return { deleted: 0, left: answer }
    },
  }
  const cleaner = new FlowCleaner({
    table: () => (asked++, table),
    log,
    meter,
    now: () => 0,
    retryMs,
  })
  const pass = async () => {
    gates.shift()?.()
    for (let turns = 0; turns < 5; turns++) await turn()
  }
  return { cleaner, cleanings, pass, asked: () => asked }
}

const udp = (name: string, endpoints = 2) => service({ name, protocol: 'UDP', endpoints })
const tcp = (name: string) => service({ name, protocol: 'TCP' })

t.test(
  'CT01, E20: flows are cleaned for the first state, and later only if a UDP Service changed',
  async (t) => {
    const { cleaner, cleanings, pass, asked } = cleanerWith()
    const cluster = states()
    cleaner.applied(cluster.put(udp('dns')).take())
    t.same(cleanings, ['IPv4'], 'flows from before this process may be stale')
    await pass()
    cleaner.applied(cluster.put(tcp('web')).take())
    t.equal(cleanings.length, 1)
    cleaner.applied(cluster.put(udp('dns', 1)).take())
    t.equal(cleanings.length, 2)
    await pass()
    await cleaner.idle()
    t.equal(asked(), 2, 'the table is asked for only to clean')
  },
)

t.test('of the states that arrive during a cleanup only the newest is cleaned', async (t) => {
  const { cleaner, cleanings, pass } = cleanerWith()
  const cluster = states()
  for (const name of ['a', 'b', 'c']) cleaner.applied(cluster.put(udp(name)).take())
  await pass()
  t.equal(cleanings.length, 2)
  await pass()
  await cleaner.idle()
  t.equal(cleanings.length, 2)
})

t.test('a state that arrives while a cleanup ends is cleaned, too', async (t) => {
  for (let turns = 0; turns < 10; turns++) {
    const { cleaner, cleanings, pass } = cleanerWith()
    const cluster = states()
    cleaner.applied(cluster.put(udp('a')).take())
    const passed = pass()
    for (let each = 0; each < turns; each++) await Promise.resolve()
    cleaner.applied(cluster.put(udp('b')).take())
    await passed
    t.equal(cleanings.length, 2, `${turns} turns later`)
    await pass()
  }
})

t.test('a deletion that failed is tried again, with the state that is in force then', async (t) => {
  const retryMs = 20
  const answers = [new Error('EPERM'), new Error('EPERM'), 0]
  const { cleaner, cleanings, pass } = cleanerWith(answers, retryMs)
  const cluster = states()
  cleaner.applied(cluster.put(udp('a')).take())
  for (let wanted = 1; wanted <= 3; wanted++) {
    await untilTrue(() => cleanings.length >= wanted)
    await pass()
  }
  await cleaner.idle()
  await delay(5 * retryMs)
  t.equal(cleanings.length, 3, 'and not again once it has worked')
})

t.test('cleaning continues after its budget, and after an error at the next change', async (t) => {
  const { cleaner, cleanings, pass } = cleanerWith([5, 0, new Error('EPERM')])
  const cluster = states()
  cleaner.applied(cluster.put(udp('a')).take())
  await pass()
  t.equal(cleanings.length, 2, 'again at once, as five were left')
  await pass()
  cleaner.applied(cluster.put(udp('b')).take())
  await pass()
  await cleaner.idle()
  cleaner.applied(cluster.put(tcp('other')).take())
  t.equal(cleanings.length, 4, 'the change of b has not been cleaned yet')
  await pass()
  await cleaner.idle()
})

t.test('CT01: flows are cleaned once more when refused rules came late', async (t) => {
  const { cleaner, cleanings, pass } = cleanerWith()
  const cluster = states().put(udp('dns'), tcp('web'))
  cleaner.applied(cluster.take())
  await pass()
  // The kernel refuses the rules of this state, so new flows still follow the old ones.
  const changed = cluster.put(udp('dns', 3)).take()
  cleaner.applied(changed)
  await pass()
  t.equal(cleanings.length, 2)
  cleaner.applied(changed)
  cleaner.applied(changed, ['default/web:http/TCP'])
  t.equal(cleanings.length, 2)
  cleaner.applied(changed, ['default/dns:http/UDP'])
  t.equal(cleanings.length, 3)
  await pass()
})
