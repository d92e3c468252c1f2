import t from 'tap'
import { UdpFlowCleaner } from '../../../lib/modes/userspace/portals/udp-flow-cleaner.js'
import type { Conntrack, ServiceFlow } from '../../../lib/kernel/conntrack.js'

const flow = (destination: string, answeredBy: string): ServiceFlow => ({
  family: 'IPv4',
  destination,
  answeredBy,
})

function cleaner(flows: readonly ServiceFlow[], opened = Promise.resolve()) {
  const deleted: ServiceFlow[] = []
  const warnings: string[] = []
  const note = (_fields: object, message: string) => void warnings.push(message)
  return {
    deleted,
    warnings,
    cleaner: new UdpFlowCleaner({
      log: { debug() {}, info() {}, warn: note, error: note },
      meter: { count() {}, gauge() {}, observe() {}, forget() {} },
      openTable: async () => {
        await opened
        return {
          delete: (family, { isStale }) => {
            deleted.push(...flows.filter((one) => one.family === family && isStale(one)))
            return Promise.resolve({ deleted: deleted.length, left: 0 })
          },
        }
      },
    }),
  }
}

t.test('US55, CT07: flows to ports without a rule are stale', async (t) => {
  const [kept, moved, untouched, gone, foreign] = [
    flow('10.96.0.10:53', '192.0.2.1:41234'),
    flow('10.96.0.10:53', '192.0.2.1:40000'),
    flow('10.96.0.10:53', '10.96.0.10:53'),
    flow('10.96.0.11:53', '192.0.2.1:41234'),
    flow('192.0.2.9:53', '192.0.2.9:53'),
  ]
  const bench = cleaner([kept, moved, untouched, gone, foreign])
  await bench.cleaner.clean(
    'IPv4',
    new Map([
      ['10.96.0.10:53', new Set([41_234])],
      ['10.96.0.11:53', new Set<number>()],
    ]),
  )
  t.strictSame(bench.deleted, [moved, untouched, gone])
})

t.test(
  'what rules of another mode may have brought back is deleted again, up to the last time',
  async (t) => {
    const stale = flow('10.96.0.10:53', '10.180.0.9:53')
    const { cleaner: cleaning, deleted } = cleaner([stale])
    await cleaning.clean('IPv4', new Map([['10.96.0.10:53', new Set([1])]]))
    await cleaning.clean('IPv4', new Map([['10.96.0.11:53', new Set([2])]]))
    t.strictSame(deleted.splice(0), [stale])
    for (const isLast of [false, true]) {
      cleaning.again(isLast)
      await cleaning.idle()
      t.strictSame(deleted.splice(0), [stale])
    }
    cleaning.again(true)
    await cleaning.idle()
    t.strictSame(deleted, [])
  },
)

t.test('a table that cannot be opened, and then not written, is tried again', async (t) => {
  const stale = flow('10.96.0.10:53', '10.96.0.10:53')
  const warnings: string[] = []
  const failures = ['EMFILE', 'EMFILE', 'EPERM']
  let deleted = 0
  const cleaner = new UdpFlowCleaner({
    log: { debug() {}, info() {}, warn: (_fields, text) => warnings.push(text), error() {} },
    meter: { count() {}, gauge() {}, observe() {}, forget() {} },
    retryMs: 5,
    openTable: () => {
      if (failures.length > 1) return Promise.reject(new Error(failures.shift()))
      const deletes: Conntrack['delete'] = (_family, { isStale }) => {
        const failure = failures.shift()
        if (failure !== undefined) return Promise.reject(new Error(failure))
        deleted = isStale(stale) ? 1 : 0
        return Promise.resolve({ deleted, left: 0 })
      }
      return Promise.resolve({ delete: deletes })
    },
  })
  await cleaner.clean('IPv4', new Map([['10.96.0.10:53', new Set([1])]]))
  while (deleted === 0) await new Promise((resolve) => setTimeout(resolve, 5))
  t.equal(warnings.length, 2, 'once for each reason')
})

t.test('a sync waits for a slow connection table only for a moment', async (t) => {
  const stale = flow('10.96.0.10:53', '10.96.0.10:53')
  let open: () => void = () => undefined
  const bench = cleaner([stale], new Promise((resolve) => (open = resolve)))
  // Timers fire in the order of their times, also on a busy machine.
  let isLate = false
  const late = setTimeout(() => (isLate = true), 500)
  await bench.cleaner.clean('IPv4', new Map([['10.96.0.10:53', new Set([1])]]))
  t.notOk(isLate)
  clearTimeout(late)
  t.strictSame(bench.deleted, [])
  open()
  while (bench.deleted.length === 0) await new Promise((resolve) => setTimeout(resolve, 5))
  t.strictSame(bench.deleted, [stale], 'and it is done all the same')
})

t.test('nothing waits for ever that comes while a deletion ends', async (t) => {
  const [first, second] = [
    flow('10.96.0.10:53', '10.96.0.10:53'),
    flow('10.96.0.11:53', '10.96.0.11:53'),
  ]
  // The second call comes the given number of turns after the table has answered the first one.
  for (let turns = 0; turns < 10; turns++) {
    const deleted = new Set<ServiceFlow>()
    const cleanAgain = async () => {
      for (let turn = 0; turn < turns; turn++) await Promise.resolve()
      await cleaner.clean('IPv4', new Map([[second.destination, new Set([1])]]))
    }
    let again: Promise<void> | undefined
    const cleaner = new UdpFlowCleaner({
      log: { debug() {}, info() {}, warn() {}, error() {} },
      meter: { count() {}, gauge() {}, observe() {}, forget() {} },
      openTable: () =>
        Promise.resolve({
          delete: (_family, { isStale }) => {
            for (const one of [first, second]) if (isStale(one)) deleted.add(one)
            again ??= cleanAgain()
            return Promise.resolve({ deleted: 0, left: 0 })
          },
        }),
    })
    await cleaner.clean('IPv4', new Map([[first.destination, new Set([1])]]))
    await again
    t.ok(deleted.has(second), `${turns} turns later`)
  }
})
