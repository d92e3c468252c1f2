import t from 'tap'
import { forgetAll, Known, knownByFamily } from '../../lib/modes/known.js'

const writing = (
  known: Known<string>,
  now: string | undefined,
  during: () => unknown = () => undefined,
) =>
  known.update((before) => {
    during()
    return Promise.resolve({ now, result: before })
  })

void t.test('a write gets the value that the last write made known', async (t) => {
  const known = new Known<string>()
  t.equal(await writing(known, 'one'), undefined)
  t.equal(known.value, 'one')
  t.equal(await writing(known, 'two'), 'one')
  t.equal(known.value, 'two')
})

void t.test('nothing is known during a write and after a failed or partial write', async (t) => {
  const known = new Known<string>()
  await writing(known, 'one')
  await writing(known, 'two', () => t.equal(known.value, undefined))
  await t.rejects(known.update(() => Promise.reject(new Error('no such table'))))
  t.equal(known.value, undefined)
  t.equal(await writing(known, undefined), undefined)
  t.equal(known.value, undefined)
})

void t.test('after a foreign change during a write its result is not known', async (t) => {
  const known = new Known<string>()
  await writing(known, 'one')
  await writing(known, 'two', () => known.forget())
  t.equal(known.value, undefined)
  t.equal(await writing(known, 'three'), undefined, 'so the next write is a full one')
  t.equal(known.value, 'three')
})

void t.test('settled() waits for every write that has begun', async (t) => {
  const known = new Known<string>()
  t.equal(await known.settled(), undefined)
  await writing(known, 'one')
  t.equal(await known.settled(), 'one')
  let finish = () => {}
  const slow = known.update(async () => {
    await new Promise<void>((resolve) => (finish = resolve))
    return { now: 'two', result: undefined }
  })
  const settled = known.settled()
  t.equal(known.value, undefined)
  finish()
  t.equal(await settled, 'two')
  await slow
  const failed = known.update(() => Promise.reject(new Error('no such table')))
  t.equal(await known.settled(), undefined, 'a failed write rejects only for the one who wrote')
  await t.rejects(failed)
})

void t.test('forgetAll forgets the values of both IP families', async (t) => {
  const known = knownByFamily<string>()
  await writing(known.IPv4, 'four')
  await writing(known.IPv6, 'six')
  forgetAll(known)
  t.same([known.IPv4.value, known.IPv6.value], [undefined, undefined])
})
