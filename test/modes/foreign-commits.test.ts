import { mock } from 'node:test'
import t from 'tap'
import { Reported } from '../../lib/modes/reported-differences.js'
import { ForeignCommits, LookPauses } from '../../lib/modes/foreign-commits.js'

/** Both families write. The second one commits, and the first one looks before this is counted. */
t.test('no number is given until an own commit is counted', async (t) => {
  let generation = 10
  const commits = new ForeignCommits(() => generation)
  const before = commits.mark
  let finish = () => {}
  const writing = commits.around(1, async () => {
    generation++
    await new Promise<void>((resolve) => (finish = resolve))
  })
  t.equal(commits.mark, undefined, 'or the next foreign commit would make the same number')
  finish()
  await writing
  t.equal(commits.mark, before, 'our own commit is none of others')
  generation++
  t.not(commits.mark, before, 'a foreign one is seen')
})

t.test('own writes wait for readings of both families', async (t) => {
  const commits = new ForeignCommits(() => 10)
  const seen: string[] = []
  const ends: (() => void)[] = []
  const read = (name: string) =>
    commits.undisturbed(async () => {
      await new Promise<void>((resolve) => ends.push(resolve))
      seen.push(name)
    })
  const write = () => commits.around(1, () => Promise.resolve(void seen.push('write')))
  const readings = [read('IPv4'), read('IPv6')]
  const writing = write()
  for (const end of ends) {
    await new Promise(setImmediate)
    end()
  }
  await Promise.all([...readings, writing])
  t.same(seen, ['IPv4', 'IPv6', 'write'])
  const failed = commits.undisturbed(() => Promise.reject(new Error('no rights')))
  await t.rejects(failed, { message: 'no rights' })
  await write()
  t.equal(seen.length, 4, 'a reading that failed holds up nobody')
})

t.test('a reading that does not end holds up no write for ever', async (t) => {
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const commits = new ForeignCommits(() => 10)
  void commits.undisturbed(() => new Promise(() => undefined))
  let isWritten = false
  const writing = commits.around(1, () => Promise.resolve(void (isWritten = true)))
  mock.timers.tick(4999)
  await new Promise(setImmediate)
  t.notOk(isWritten)
  mock.timers.tick(1)
  await writing
  t.ok(isWritten)
})

t.test('every ten seconds a sync leaves time for a reading', async (t) => {
  let now = 10_000
  const clock = mock.method(performance, 'now', () => now)
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => {
    clock.mock.restore()
    mock.timers.reset()
  })
  const pass = async (ms: number) => {
    now += ms
    mock.timers.tick(ms)
    await new Promise(setImmediate)
  }
  const commits = new ForeignCommits(() => 10)
  const written: number[] = []
  const sync = async () => {
    await commits.whenQuiet()
    await commits.around(1, () => Promise.resolve(void written.push(now)))
  }
  await sync()
  now++
  await sync()
  t.same(written, [10_000, 10_001], 'nobody knows yet how long a reading takes')
  const reading = commits.undisturbed(() => pass(200))
  const waiting = sync()
  await reading
  await waiting
  t.equal(written[2], 10_201, 'a sync waits for a reading')
  for (let count = 0; count < 400; count++) {
    const next = sync()
    await pass(100)
    await pass(100)
    await next
  }
  const pauses = written.slice(3).map((at, index) => at - (written[index + 2] ?? 0))
  const long = pauses.filter((ms) => ms >= 300)
  t.ok(
    long.length >= 6 && long.length <= 9,
    `${long.length} pauses, each long enough for a reading`,
  )
})

t.test('own work that overlaps is counted once', async (t) => {
  let generation = 10
  const commits = new ForeignCommits(() => generation)
  const before = commits.mark
  const finish: (() => void)[] = []
  const write = () =>
    commits.around(2, async () => {
      await new Promise<void>((resolve) => finish.push(resolve))
      generation++
    })
  const both = [write(), write()]
  for (const end of finish) end()
  await Promise.all(both)
  t.equal(commits.mark, before)
  generation++
  t.not(commits.mark, before, 'a foreign one is seen')
})

t.test('a commit of another program while our own write fails is seen', async (t) => {
  let generation = 10
  const commits = new ForeignCommits(() => generation)
  const before = commits.mark
  const refused = commits.around(1, async () => {
    generation++
    return Promise.reject(new Error('the kernel refuses it'))
  })
  const written = commits.around(1, async () => {
    generation++
  })
  await t.rejects(refused, /refuses/)
  await written
  t.equal(commits.mark, Number(before) + 1, 'beside a write that does not fail, too')
})

t.test('a counter that cannot be read for a while is read again later', async (t) => {
  const kernel = { generation: 10, denies: false }
  const commits = new ForeignCommits(() => {
    if (kernel.denies) throw new Error('EPERM')
    return kernel.generation
  })
  const write = () => commits.around(1, () => Promise.resolve(kernel.generation++))
  kernel.denies = true
  await t.rejects(write(), /EPERM/)
  const losing = commits.around(1, () => Promise.reject(new Error('no right to write')))
  await t.rejects(losing, /EPERM/)
  kernel.denies = false
  const before = commits.mark
  t.type(before, 'number', 'no work counts as under way')
  await write()
  t.equal(commits.mark, before)
})

t.test(
  'a foreign commit ends a pause early, but not where others write all the time',
  async (t) => {
    let [mark, readsToCommit]: [number | undefined, number] = [1, 0]
    const foreign = {
      get mark() {
        if (mark !== undefined && --readsToCommit === 0) mark++
        return mark
      },
    }
    const pauses = new LookPauses(foreign, 1)
    const isEarly = async (ms: number, commits = false) => {
      // A pause reads at its beginning, and after each millisecond.
      readsToCommit = commits ? 2 : 0
      const began = performance.now()
      await pauses.pause(ms, new AbortController().signal)
      return performance.now() - began < ms
    }
    t.equal(await isEarly(20), false, 'nothing happens')
    t.equal(await isEarly(600_000, true), true)
    t.equal(await isEarly(20, true), false, 'the next one comes at once')
    t.equal(await isEarly(20, true), false, 'and after a pause with a commit')
    t.equal(await isEarly(20), false)
    t.equal(await isEarly(600_000, true), true, 'after a whole quiet pause')
    mark = undefined
    t.equal(await isEarly(20, true), false, 'without a count')
    const ended = new AbortController()
    setTimeout(() => ended.abort(), 5)
    await pauses.pause(600_000, ended.signal)
  },
)

const difference = ({ mayBeWording }: { readonly mayBeWording: boolean }) => ({
  ...{ chain: 'nat KUBE-SVC-A', what: 'has no rule', fingerprint: 'none' },
  mayBeWording,
})

/** What is reported where nothing counts commits, and what is warned of. */
function withoutCount() {
  const warnings: string[] = []
  const nothing = () => undefined
  const warn = (_: object, message: string) => void warnings.push(message)
  const uncounted = new Reported({ debug: nothing, info: nothing, warn, error: nothing })
  return { uncounted, warnings }
}

t.test('a change that another program repeats is repaired each time', (t) => {
  const nothing = () => undefined
  const log = { debug: nothing, info: nothing, warn: nothing, error: nothing }
  const changed = [difference({ mayBeWording: true })]
  const others = new Reported(log)
  const reading = (fullSyncs: number, mark: number, endMark = mark) =>
    others.fresh(changed, { fullSyncs, mark, endMark })
  for (let mark = 1, fullSyncs = 1; fullSyncs < 4; mark++, fullSyncs++) {
    t.same(reading(fullSyncs, mark), changed)
  }
  t.same(reading(4, 3, 4), changed, 'also where it is made again during a reading')
  t.same(reading(5, 4), changed)
  t.same(reading(6, 4), [], 'nobody else wrote: other words')
  t.same(reading(6, 5, 6), [], 'and they stay so')
  t.end()
})

const unmarked = { mark: undefined, endMark: undefined }

t.test('without a count of commits, what is ignored is written anew now and then', (t) => {
  const { uncounted, warnings } = withoutCount()
  const changed = [difference({ mayBeWording: true })]
  let fullSyncs = 1
  const repaired: number[] = []
  for (let reading = 0; reading < 45; reading++) {
    if (uncounted.fresh(changed, { fullSyncs, ...unmarked }).length === 0) continue
    repaired.push(reading)
    fullSyncs++
  }
  t.same(repaired, [0, 21, 42], 'nothing tells whether another program repeats it')
  t.same(warnings, ['a chain still differs after it was written anew; ignored'], 'told once')
  t.same(uncounted.fresh([], { fullSyncs, ...unmarked }), [])
  t.same(uncounted.fresh(changed, { fullSyncs, ...unmarked }), changed, 'it was repaired')
  t.end()
})

t.test('without a count of commits, a rule that is missing again is no matter of words', (t) => {
  const { uncounted, warnings } = withoutCount()
  const changed = [difference({ mayBeWording: false })]
  for (let fullSyncs = 1; fullSyncs < 6; fullSyncs++) {
    t.same(uncounted.fresh(changed, { fullSyncs, ...unmarked }), changed)
  }
  t.same(warnings, [])
  t.end()
})
