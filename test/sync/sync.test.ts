import t from 'tap'
import { KernelError } from '../../lib/errors.js'
import { SyncLoop, type Clock } from '../../lib/sync/loop.js'
import { Bell, Slice, together } from '../../lib/async.js'
import { syncRound } from '../../lib/sync/sync-round.js'
import { Tracker, type TrackerSettings } from '../../lib/state/tracker.js'
import { Syncer } from '../../lib/sync/syncer.js'
import { PersistentMap } from '../../lib/state/persistent-map.js'
import type { Applied, FamilyPlan, Mode } from '../../lib/modes/mode.js'
import { service, states } from '../support/states.js'
import type { DesiredState } from '../../lib/state/desired-state.js'

/** A clock that moves only when a test moves it. */
class ManualClock implements Clock {
  #now = 0
  #sleepers: { at: number; wake: () => void }[] = []

  now(): number {
    return this.#now
  }

  sleep(ms: number, bell: Bell): Promise<void> {
    return new Promise((resolve) => {
      if (ms <= 0 || bell.isRung) {
        resolve()
        return
      }
      const wake = () => {
        bell.onRing = undefined
        this.#sleepers = this.#sleepers.filter((other) => other !== sleeper)
        resolve()
      }
      const sleeper = { at: this.#now + ms, wake }
      this.#sleepers.push(sleeper)
      bell.onRing = wake
    })
  }

  async advance(ms: number): Promise<void> {
    const end = this.#now + ms
    for (;;) {
      await settle()
      const next = this.#sleepers.filter(({ at }) => at <= end).sort((a, b) => a.at - b.at)[0]
      if (!next) break
      this.#now = next.at
      next.wake()
    }
    this.#now = end
  }
}

const settle = () => new Promise((resolve) => setImmediate(resolve))

function loopWith(
  sync: (at: number) => boolean | Promise<boolean>,
  minIntervalMs: number | 'measured' = 1000,
  whenQuiet?: (clock: ManualClock) => Promise<void>,
) {
  const clock = new ManualClock()
  const starts: number[] = []
  const errors: unknown[] = []
  const stop = new AbortController()
  const loop = new SyncLoop({
    minIntervalMs,
    maxIntervalMs: 60_000,
    retryIntervalMs: 5000,
    onError: (error) => errors.push(error),
    clock,
  })
  const run = async () => {
    starts.push(clock.now())
    return sync(clock.now())
  }
  const ended = loop.run(run, stop.signal, whenQuiet && (() => whenQuiet(clock)))
  return { loop, clock, starts, errors, stop: async () => (stop.abort(), ended) }
}

t.test(
  'R01, R12: no sync runs before the first request, and many requests cause one sync',
  async (t) => {
    const { loop, clock, starts, stop } = loopWith(() => true)
    await clock.advance(100_000)
    t.same(starts, [])
    for (let request = 0; request < 100; request++) loop.request()
    await clock.advance(30_000)
    t.same(starts, [100_000])
    await stop()
  },
)

t.test('R03: the minimum interval starts at the end of a sync', async (t) => {
  const clocks: ManualClock[] = []
  const { loop, clock, starts, stop } = loopWith(async () => {
    await clocks[0]?.sleep(3000, new Bell())
    return true
  })
  clocks.push(clock)
  loop.request()
  await clock.advance(500)
  loop.request()
  await clock.advance(10_000)
  t.same(starts, [0, 4000])
  await clock.advance(10_000)
  loop.request()
  await clock.advance(0)
  t.same(starts, [0, 4000, 20_500], 'after a quiet time a request is served at once')
  await clock.advance(3000)
  await stop()
})

t.test('a sync waits until nobody reads, and that wait is no cost', async (t) => {
  const reading = (clock: ManualClock) => clock.sleep(700, new Bell())
  const { loop, clock, starts, stop } = loopWith(() => true, 'measured', reading)
  for (let passed = 0; passed < 3000; passed += 100) {
    loop.request()
    await clock.advance(100)
  }
  t.same(starts, [0, 800, 1500, 2200, 2900])
  const ending = stop()
  await clock.advance(700)
  await ending
})

/** The starts of syncs that take these times one after the other, with a request every ms. */
async function startsUnderLoad(
  costsMs: readonly number[],
  minIntervalMs: number | 'measured',
): Promise<readonly number[]> {
  const clocks: ManualClock[] = []
  const costs = [...costsMs]
  const { loop, clock, starts, stop } = loopWith(async () => {
    await clocks[0]?.sleep(costs.shift() ?? 0, new Bell())
    return true
  }, minIntervalMs)
  clocks.push(clock)
  for (let ms = 0; starts.length < costsMs.length && ms < 5000; ms++) {
    loop.request()
    await clock.advance(1)
  }
  // The last one has to end.
  await clock.advance(5000)
  await stop()
  return starts.slice(0, costsMs.length)
}

t.test('R03: without a period the pauses under load are nine times what syncs take', async (t) => {
  t.same(await startsUnderLoad([2, 2, 2, 2], 'measured'), [0, 20, 40, 60])
  t.same(await startsUnderLoad([100, 100, 1], 'measured'), [0, 800, 1600], 'within a second')
  t.same(await startsUnderLoad([400, 400, 1], 'measured'), [0, 650, 1300], 'not all the time')
})

t.test('R03: what a slow sync owes is spread over the pauses after it', async (t) => {
  const costs = [8, 8, 64, ...Array.from({ length: 20 }, () => 8)]
  const starts = await startsUnderLoad(costs, 'measured')
  const pauses = starts.slice(1).map((start, at) => start - (starts[at] ?? 0) - (costs[at] ?? 0))
  t.same(pauses.slice(0, 2), [72, 72])
  // 64 ms need 576 ms; they raise the usual cost from 8 to 15.
  t.equal(pauses[2], 135)
  t.ok(Math.max(...pauses) <= 135, 'no change waits for much longer than usual')
  const paused = pauses.reduce((sum, pause) => sum + pause, 0)
  const owed = 9 * (8 * 21 + 64)
  t.ok(paused > owed * 0.95 && paused <= owed + 1, `${paused} of ${owed} ms`)
})

t.test('R03: a period that is set is kept to the letter, whatever syncs take', async (t) => {
  t.same(await startsUnderLoad([1, 400, 400, 1], 250), [0, 251, 901, 1551])
  t.same(await startsUnderLoad([3, 20, 3], 0), [0, 3, 23], 'also none')
})

t.test('R03: without a period the first change of a quiet time goes at once', async (t) => {
  const { loop, clock, starts, stop } = loopWith(() => true, 'measured')
  loop.request()
  await clock.advance(2000)
  loop.request()
  await clock.advance(0)
  t.same(starts, [0, 2000])
  await stop()
})

t.test(
  'R03: quiet times save up pauses, so a slow sync among quick ones delays nobody',
  async (t) => {
    const clocks: ManualClock[] = []
    const costs = [20, 20, 20, 20, 1]
    const { loop, clock, starts, stop } = loopWith(async () => {
      await clocks[0]?.sleep(costs.shift() ?? 0, new Bell())
      return true
    }, 'measured')
    clocks.push(clock)
    loop.request()
    await clock.advance(5000)
    for (let ms = 0; starts.length < 5 && ms < 2000; ms++) {
      loop.request()
      await clock.advance(1)
    }
    // The last one has to end.
    await clock.advance(500)
    // Each sync of 20 ms needs a pause of 180 ms. 200 ms are saved: the first sync uses 180 of
    // them, and 20 are left for the second.
    t.same(starts.slice(0, 5), [0, 5000, 5020, 5200, 5400])
    await stop()
  },
)

t.test('R03: a sync costs what processors work for it, not what it waits', async (t) => {
  const clock = new ManualClock()
  const starts: number[] = []
  const stop = new AbortController()
  let usedMs = 1000
  const loop = new SyncLoop({
    minIntervalMs: 'measured',
    maxIntervalMs: 60_000,
    retryIntervalMs: 5000,
    onError: () => undefined,
    clock,
    processorMs: () => usedMs,
  })
  const ended = loop.run(async () => {
    starts.push(clock.now())
    await clock.sleep(60, new Bell())
    usedMs += 10
    return true
  }, stop.signal)
  loop.request()
  await clock.advance(10)
  loop.request()
  await clock.advance(500)
  t.same(starts, [0, 150])
  stop.abort()
  await ended
})

t.test('R03: a pause of old intervals does not outlive them', async (t) => {
  const { loop, clock, starts, stop } = loopWith(() => true, 50_000)
  loop.request()
  await clock.advance(1000)
  loop.request()
  await clock.advance(1000)
  t.same(starts, [0], 'the request waits')
  loop.setIntervals({ minIntervalMs: 100, maxIntervalMs: 60_000, retryIntervalMs: 5000 })
  await clock.advance(0)
  t.same(starts, [0, 2000])
  loop.request()
  await clock.advance(1000)
  t.same(starts, [0, 2000, 2100], 'the new least time counts')
  await stop()
})

t.test('R04: a pause by cost never outlasts the maximum interval', async (t) => {
  const clocks: ManualClock[] = []
  const { loop, clock, starts, stop } = loopWith(async () => {
    await clocks[0]?.sleep(200, new Bell())
    return true
  }, 'measured')
  clocks.push(clock)
  loop.setIntervals({ minIntervalMs: 'measured', maxIntervalMs: 500, retryIntervalMs: 500 })
  loop.request()
  await clock.advance(1500)
  t.same(starts, [0, 700, 1400])
  await clock.advance(1000)
  await stop()
})

t.test(
  'R03, R04: a sync runs at the maximum interval, and a failed one again after the retry interval',
  async (t) => {
    let good = false
    const { loop, clock, starts, stop } = loopWith(() => good)
    loop.request()
    await clock.advance(5000)
    t.same(starts, [0, 5000])
    good = true
    await clock.advance(5000)
    t.same(starts, [0, 5000, 10_000])
    await clock.advance(60_000)
    t.same(starts, [0, 5000, 10_000, 70_000])
    await stop()
  },
)

t.test('R03: a sync that throws is reported as failed and tried again', async (t) => {
  const { loop, clock, starts, errors, stop } = loopWith((at) => {
    if (at === 0) throw new Error('boom')
    return true
  })
  loop.request()
  await clock.advance(6000)
  t.same(starts, [0, 5000])
  t.match(errors, [{ message: 'boom' }])
  await stop()
})

t.test('a maximum interval below the minimum is refused', async (t) => {
  const options = { retryIntervalMs: 1, onError: () => undefined }
  t.throws(() => new SyncLoop({ ...options, minIntervalMs: 2, maxIntervalMs: 1 }), /shorter/)
})

const trackerSettings: TrackerSettings = {
  families: ['IPv4', 'IPv6'],
  nodeName: 'n',
  bindAddress: '',
  nodePortAddresses: [],
  detectLocal: { mode: 'NodeCIDR' },
  allowsExternalIps: true,
}

const state = (family: 'IPv4' | 'IPv6'): DesiredState => ({
  family,
  services: PersistentMap.empty(),
  node: {
    name: 'n',
    primaryIp: undefined,
    localAddresses: [],
    nodePorts: { matchesAll: true, cidrs: [], addresses: [], asksForLoopback: false },
    localTraffic: { by: 'none' },
  },
  serviceCidrs: [],
})

function modeWith(apply: (plan: FamilyPlan) => Applied) {
  const calls: FamilyPlan[] = []
  const seen = { forgets: 0 }
  const mode: Mode = {
    plan: ({ family }) => ({ family }),
    render: () => '',
    renderChanges: () => '',
    apply: async (plan) => {
      calls.push(plan)
      await settle()
      return apply(plan)
    },
    forget: () => {
      seen.forgets++
    },
    reconfigure: () => false,
    run: () => Promise.resolve(),
    close: () => Promise.resolve(),
  }
  return { mode, calls, seen }
}

const fine: Applied = { full: false, bytes: 1, objects: 1, failed: [] }

t.test('a state is applied once', async (t) => {
  const { mode, calls, seen } = modeWith(() => fine)
  const syncer = new Syncer(mode)
  const one = state('IPv4')
  t.equal((await syncer.sync(one)).outcome, 'applied')
  t.equal((await syncer.sync(one)).outcome, 'unchanged')
  t.equal((await syncer.sync(state('IPv4'))).outcome, 'applied')
  t.equal(calls.length, 2)
  t.equal(seen.forgets, 0)
})

t.test(
  'R11: after a failure the same state is applied again, but not for the other IP family',
  async (t) => {
    let broken = false
    const { mode } = modeWith(() => {
      if (broken) throw new KernelError('busy', 'restore: lock held', { detail: 'another app' })
      return fine
    })
    const syncer = new Syncer(mode)
    const [four, six] = [state('IPv4'), state('IPv6')]
    await syncer.sync(four)
    await syncer.sync(six)
    broken = true
    const failure = { outcome: 'failed', error: 'restore: lock held', detail: 'another app' }
    t.match(await syncer.sync(state('IPv4')), { ...failure, full: false })
    t.match(await syncer.sync(four), { ...failure, full: true })
    broken = false
    t.equal((await syncer.sync(four)).outcome, 'applied')
    t.equal((await syncer.sync(six)).outcome, 'unchanged')
  },
)

t.test('forget() reaches the mode, and during an apply the state is applied again', async (t) => {
  const { mode, calls, seen } = modeWith(() => fine)
  const syncer = new Syncer(mode)
  const one = state('IPv4')
  const first = syncer.sync(one)
  syncer.forget()
  t.equal((await first).outcome, 'applied')
  t.equal((await syncer.sync(one)).outcome, 'applied')
  t.equal((await syncer.sync(one)).outcome, 'unchanged')
  t.equal(calls.length, 2)
  t.equal(seen.forgets, 1)
})

t.test(
  'after forget() all service ports are late: their rules may have been missing',
  async (t) => {
    let [isBroken, full] = [false, true]
    const { mode } = modeWith(() => {
      if (isBroken) throw new Error('broken')
      return { ...fine, full }
    })
    const syncer = new Syncer(mode)
    const cluster = states('IPv4')
    const one = cluster.put(service({ name: 'web' })).take()
    t.match(await syncer.sync(one), { late: [] }, 'those of an earlier run stayed')
    syncer.forget()
    isBroken = true
    t.match(await syncer.sync(one), { outcome: 'failed' })
    isBroken = false
    t.match(await syncer.sync(one), { late: [...one.services.keys()] })
    full = false
    const two = cluster.put(service({ name: 'api' })).take()
    t.match(await syncer.sync(two), { outcome: 'applied', late: [] })
  },
)

t.test('all service ports are late where the mode found that its rules were gone', async (t) => {
  let full = true
  const { mode } = modeWith(() => ({ ...fine, full }))
  const syncer = new Syncer(mode)
  const cluster = states('IPv4')
  const next = (name: string) => syncer.sync(cluster.put(service({ name })).take())
  t.match(await next('web'), { late: [] }, 'the first sync writes everything')
  full = false
  t.match(await next('api'), { late: [] })
  full = true
  const { late } = await next('dns')
  t.equal(late?.length, 3)
})

t.test('service ports that failed are tried again with the same plan', async (t) => {
  const failed = [{ key: 'a/b/TCP', reason: 'port taken' }]
  const { mode, calls } = modeWith(() => ({ ...fine, failed: calls.length === 1 ? failed : [] }))
  const syncer = new Syncer(mode)
  const one = state('IPv4')
  t.match(await syncer.sync(one), { failed, late: [] })
  t.match(await syncer.sync(one), { outcome: 'applied', late: ['a/b/TCP'] })
  t.equal((await syncer.sync(one)).outcome, 'unchanged')
})

t.test('R05, R06: a failed IP family does not stop the other', async (t) => {
  const fails = new Set(['IPv4'])
  const { mode, calls } = modeWith((plan) => {
    if (fails.has(plan.family)) throw new Error('no such table')
    return fine
  })
  const told: string[] = []
  const update = {
    ...new Tracker(trackerSettings).take(),
    states: [state('IPv4'), state('IPv6')],
    changed: new Map([['IPv6', 2]] as const),
  }
  const syncer = new Syncer(mode)
  const round = (signal = new AbortController().signal) =>
    syncRound({
      signal,
      tracker: { take: () => update },
      syncer,
      listeners: [
        {
          started: () => told.push('started'),
          synced: ({ family, outcome }, changed) => told.push(`${family} ${outcome} ${changed}`),
        },
      ],
      applied: ({ family }) => told.push(`${family} written`),
      allApplied: () => told.push('all written'),
    })
  t.notOk(await round(), 'so the loop tries again')
  t.same(told.splice(0), ['started', 'IPv4 failed 0', 'IPv6 applied 2', 'IPv6 written'])
  t.equal(calls.length, 2)
  const stop = new AbortController()
  const last = round(stop.signal)
  // The failure is there in the same turn, before this process hears the signal.
  setImmediate(() => stop.abort())
  t.notOk(await last)
  t.same(told.splice(0), ['started'], 'that programs end together with this process is no news')
  fails.clear()
  t.ok(await round())
  t.match(told.join(', '), /IPv4 applied 0, IPv4 written, IPv6 \w+ 2, IPv6 written, all written/)
})

t.test('together: a task that fails stops the others, and its error is reported', async (t) => {
  const stopped: string[] = []
  const patient = (name: string) => (signal: AbortSignal) =>
    new Promise<void>((resolve) => {
      signal.addEventListener('abort', () => {
        stopped.push(name)
        resolve()
      })
    })
  const never = new AbortController()
  const broken = () => Promise.reject(new Error('out of ports'))
  await t.rejects(together(never.signal, [patient('a'), broken, patient('b')]), {
    message: 'out of ports',
  })
  t.same(stopped, ['a', 'b'])
  const stop = new AbortController()
  const ended = together(stop.signal, [patient('c')])
  stop.abort()
  await ended
  t.same(stopped, ['a', 'b', 'c'])
})

t.test('health checks are answered between the long parts of a sync', async (t) => {
  const order: string[] = []
  const long = (part: string) => {
    order.push(part)
    setImmediate(() => order.push('an answer'))
    busy(100)
  }
  const { mode } = modeWith(() => fine)
  const update = { ...new Tracker(trackerSettings).take(), states: [state('IPv4')] }
  const slow: Mode = {
    ...mode,
    plan: ({ family }) => {
      long('plan')
      return { family }
    },
    apply: (plan) => {
      order.push('apply')
      return mode.apply(plan)
    },
  }
  await syncRound({
    tracker: {
      take: () => {
        long('take')
        return update
      },
    },
    syncer: new Syncer(slow),
    listeners: [],
    applied: () => undefined,
    allApplied: () => undefined,
  })
  t.strictSame(order, ['take', 'an answer', 'plan', 'an answer', 'apply'])
})

function busy(ms: number): void {
  for (const end = performance.now() + ms; performance.now() < end;);
}

t.test('long work rests while others have work, but not for ever', async (t) => {
  /** Work in so many turns of the event loop in a row, as a change is. */
  const turns = async (count: number) => {
    for (let turn = 0; turn < count; turn++) {
      await new Promise(setImmediate)
      busy(1)
    }
  }
  const order: string[] = []
  await Promise.all([
    turns(5).then(() => order.push('change')),
    new Slice(300_000).rest().then(() => order.push('long work')),
  ])
  t.strictSame(order, ['change', 'long work'])
  const others = { areBusy: true }
  const endless = (async () => {
    while (others.areBusy) await turns(1)
  })()
  await new Slice(5).rest()
  others.areBusy = false
  await endless
})
