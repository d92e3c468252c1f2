import t from 'tap'
import fc from 'fast-check'
import { PersistentMap, type Derivation } from '../../lib/state/persistent-map.js'

t.test('a PersistentMap behaves as a Map, and copies do not see later updates', async (t) => {
  const change = fc.tuple(fc.string({ maxLength: 2 }), fc.option(fc.integer(), { nil: undefined }))
  fc.assert(
    fc.property(fc.array(fc.array(change)), (batches) => {
      const model = new Map<string, number>()
      let map = PersistentMap.empty<number>()
      for (const batch of batches) {
        const before = map
        const beforeEntries = [...map].sort()
        map = map.update(batch)
        for (const [key, value] of batch) {
          if (value === undefined) model.delete(key)
          else model.set(key, value)
        }
        if (JSON.stringify([...before].sort()) !== JSON.stringify(beforeEntries)) return false
      }
      return (
        map.size === model.size &&
        JSON.stringify([...map].sort()) === JSON.stringify([...model].sort())
      )
    }),
  )
  t.pass('held')
})

t.test('has() tells whether a key exists', async (t) => {
  const map = PersistentMap.from([['a', 1]])
  t.same([map.has('a'), map.has('b')], [true, false])
})

t.test('an update that changes nothing gives the same map', async (t) => {
  const map = PersistentMap.from([['a', 1]])
  t.equal(
    map.update([
      ['a', 1],
      ['b', undefined],
    ]),
    map,
  )
  t.equal(map.update([]), map)
})

t.test('since() names exactly what was added, changed and removed', async (t) => {
  const one = PersistentMap.from<object>([
    ['a', t],
    ['b', t],
    ['c', t],
  ])
  const other = {}
  const two = one.update([
    ['a', undefined],
    ['b', other],
    ['d', other],
  ])
  t.same(two.since(one), {
    added: [['d', other]],
    changed: [['b', other, t]],
    removed: [['a', t]],
  })
  t.equal(two.since(undefined).added.length, 3)
  t.same(two.since(two), { added: [], changed: [], removed: [] })
})

t.test('derive() makes new values only for changed entries', async (t) => {
  const entries = Array.from({ length: 3000 }, (_, index) => [`k${index}`, { index }] as const)
  const map = PersistentMap.from<{ index: number }>(entries)
  const memo: Derivation<{ index: number }, { index: number }> = {}
  let calls = 0
  const derive = (from: typeof map) => from.derive(memo, ({ index }) => (calls++, { index }))
  const first = derive(map)
  t.equal(calls, 3000)
  const second = derive(map.update([['k7', { index: 8000 }]]))
  t.equal(calls, 3001)
  t.equal(second.get('k7')?.index, 8000)
  const { added, changed, removed } = second.since(first)
  t.same(
    [...added, ...changed, ...removed].map(([key]) => key),
    ['k7'],
  )
})
