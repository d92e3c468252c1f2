import t from 'tap'
import { endpointCheckOf } from '../../../lib/state/endpoint-check.js'
import { Schedule } from '../../../lib/sources/health/schedule.js'
import type { CheckTarget, Turn } from '../../../lib/sources/health/messages.js'
import type { Outcome } from '../../../lib/sources/health/outcome.js'

interface Timer {
  readonly at: number
  readonly then: () => void
}

/** A schedule with played time, whose endpoints answer as the test says. */
function played(most = 256) {
  let time = 0
  const timers = new Set<Timer>()
  const turns: Turn[] = []
  const checks: { readonly id: string; readonly at: number }[] = []
  const pending: ((outcome: Outcome) => void)[] = []
  const schedule = new Schedule({
    probe: ({ id }) => {
      checks.push({ id, at: time })
      return new Promise((resolve) => pending.push(resolve))
    },
    turned: (turn) => turns.push(turn),
    now: () => time,
    random: () => 0.5,
    turns: {
      wait: (ms, then) => {
        timers.add({ at: time + ms, then })
        return time + ms
      },
      cancel: (at, then) => {
        for (const timer of timers) {
          if (timer.at === at && timer.then === then) timers.delete(timer)
        }
      },
    },
    most,
  })
  const settle = () => new Promise((resolve) => setImmediate(resolve))
  /** Fires the next timers, and gives this answer to all checks under way. */
  const round = async (outcome: Outcome['kind'], reason = 'dark') => {
    const next = Math.min(...Array.from(timers, ({ at }) => at))
    time = Math.max(time, next)
    for (const timer of timers) {
      if (timer.at > time) continue
      timers.delete(timer)
      timer.then()
    }
    for (const resolve of pending.splice(0)) {
      resolve(outcome === 'good' ? { kind: 'good' } : { kind: outcome, reason })
    }
    await settle()
  }
  return { schedule, turns, checks, pending, timers, round }
}

function target(id: string, reason?: string, namespace = 'default'): CheckTarget {
  const options = { 'health-check': 'tcp', 'health-check-interval': '10s' }
  const check = endpointCheckOf(options, 'TCP')
  if (!check) throw new Error('no check')
  return { id, namespace, ip: '192.0.2.1', port: 1, check, reason }
}

t.test('three failures in a row turn an endpoint, two good answers turn it back', async (t) => {
  const { schedule, turns, round } = played()
  schedule.set(target('a'))
  for (const outcome of ['bad', 'bad', 'good', 'bad', 'bad'] as const) await round(outcome)
  t.same(turns, [], 'a good answer between them counts')
  await round('bad')
  t.same(turns.splice(0), [{ id: 'a', reason: 'dark' }])
  for (const outcome of ['good', 'bad', 'good'] as const) await round(outcome)
  t.same(turns, [])
  await round('good')
  t.same(turns, [{ id: 'a', reason: undefined }], 'it comes back by itself')
})

t.test('a check that this node could not make says nothing of the endpoint', async (t) => {
  const { schedule, turns, round } = played()
  schedule.set(target('a'))
  for (let count = 0; count < 5; count++) await round('unknown')
  t.same(turns, [])
  t.same(schedule.takeCounts(), { good: 0, bad: 0, unknown: 5 })
})

t.test('an endpoint that was failing at the start still counts as failing', async (t) => {
  const { schedule, turns, round } = played()
  schedule.set(target('a', 'dark'))
  await round('bad')
  t.same(turns, [])
  await round('good')
  await round('good')
  t.same(turns, [{ id: 'a', reason: undefined }])
})

t.test('an interval is never longer than asked for, so fall x interval is a promise', async (t) => {
  const { schedule, checks, round } = played()
  schedule.set(target('a'))
  for (let count = 0; count < 4; count++) await round('good')
  const gaps = checks.slice(1).map(({ at }, index) => at - (checks[index]?.at ?? 0))
  t.same(gaps, [9900, 9900, 9900])
  t.ok((checks[0]?.at ?? 0) <= 10_000, 'the first check is spread over the interval')
})

t.test('checks above the limit wait for their turn, and all get one', async (t) => {
  const { schedule, checks, round } = played(4)
  for (const id of ['a', 'b', 'c', 'd', 'e']) schedule.set(target(id))
  await round('good')
  t.same(new Set(checks.map(({ id }) => id)).size, 4, 'two began, and two when these ended')
  await round('good')
  t.same([...new Set(checks.map(({ id }) => id))], ['a', 'b', 'c', 'd', 'e'])
})

t.test('a namespace whose endpoints never answer leaves places to others', (t) => {
  const { schedule, checks, timers } = played(8)
  for (let index = 0; index < 20; index++) schedule.set(target(`dark ${index}`))
  for (const namespace of ['shop', 'bank']) {
    schedule.set(target(namespace, undefined, namespace))
    schedule.set(target(`${namespace} too`, undefined, namespace))
  }
  for (const timer of timers) timer.then()
  t.same(
    checks.map(({ id }) => id),
    ['dark 0', 'dark 1', 'dark 2', 'dark 3', 'shop', 'shop too', 'bank'],
  )
  t.end()
})

t.test('an endpoint that left is neither checked nor told', async (t) => {
  const { schedule, turns, checks, pending, timers, round } = played(1)
  const { check } = target('')
  schedule.set({ ...target('a'), check: { ...check, fall: 1 } })
  schedule.set(target('b'))
  for (const timer of timers) timer.then()
  t.same(
    checks.map(({ id }) => id),
    ['a'],
  )
  timers.clear()
  schedule.remove('a')
  schedule.remove('b')
  pending.splice(0)[0]?.({ kind: 'bad', reason: 'late' })
  await new Promise((resolve) => setImmediate(resolve))
  t.same(turns, [])
  t.equal(timers.size, 0)
  schedule.set(target('c'))
  await round('good')
  t.same(
    checks.map(({ id }) => id),
    ['a', 'c'],
    'its place is free again',
  )
})

t.test('an endpoint that fails for another reason is told again', async (t) => {
  const { schedule, turns, round } = played()
  schedule.set(target('a'))
  for (const reason of ['dark', 'dark', 'dark', 'dark', 'refused', 'refused']) {
    await round('bad', reason)
  }
  await round('good')
  await round('bad', 'refused')
  t.same(turns, [
    { id: 'a', reason: 'dark' },
    { id: 'a', reason: 'refused' },
  ])
})
