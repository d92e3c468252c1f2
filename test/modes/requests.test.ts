import t from 'tap'
import { PersistentMap } from '../../lib/state/persistent-map.js'
import { updateRequests } from '../../lib/modes/requests.js'

interface Request {
  readonly owner: string
  readonly isLast?: boolean
  readonly text: string
}

const reader = {
  of: (part: Request) => [['10.96.0.1', part] as const],
  isSame: (a: Request, b: Request) => a.text === b.text && a.isLast === b.isLast,
}

t.test('the work of requests for one thing grows with their number', async (t) => {
  let reads = 0
  const part = (index: number, text: string) =>
    ({
      get owner() {
        reads++
        return `default/web:p${index}`
      },
      text,
    }) satisfies Request
  const parts = (count: number, text: string) =>
    Array.from({ length: count }, (_, index) => [`p${index}`, part(index, text)] as const)
  const costs = [300, 600].map((count) => {
    reads = 0
    const none = PersistentMap.empty<readonly Request[]>()
    const [before, now] = [parts(count, 'a'), parts(count, 'b')]
    const first = updateRequests(none, { added: before, changed: [], removed: [] }, reader)
    const changed = now.map(([key, each], at) => [key, each, before[at]?.[1] ?? each] as const)
    const second = updateRequests(first, { added: [], changed, removed: [] }, reader)
    const last = updateRequests(second, { added: [], changed: [], removed: now }, reader)
    t.same(
      [first, second, last].map(({ size }) => size),
      [1, 1, 0],
    )
    return reads
  })
  const [few, many] = costs as [number, number]
  t.ok(many < 2.5 * few, `${few} reads of an owner, then ${many}`)
})

t.test('requests for one thing come and go, and the smallest owner is first', async (t) => {
  const owners = ['d', 'b', 'a', 'c', 'e']
  const each = (owner: string, text = '') => [owner, { owner, text }] as const
  const none = PersistentMap.empty<readonly Request[]>()
  const added = owners.map((owner) => each(owner))
  const all = updateRequests(none, { added, changed: [], removed: [] }, reader)
  const list = (requests: typeof all) => requests.get('10.96.0.1')?.map(({ owner }) => owner)
  t.same(list(all), ['a', 'b', 'c', 'd', 'e'])
  const [a, e] = [each('a'), each('e', 'new')]
  const left = updateRequests(
    all,
    { added: [], changed: [['e', e[1], each('e')[1]]], removed: [a] },
    reader,
  )
  t.same(list(left), ['b', 'c', 'd', 'e'])
  t.equal(left.get('10.96.0.1')?.[3]?.text, 'new')
  t.equal(left.get('10.96.0.1')?.[0], all.get('10.96.0.1')?.[1], 'the others stay by reference')
  const same = { added: [], changed: [['b', each('b')[1], each('b')[1]]] as const, removed: [] }
  t.equal(updateRequests(left, same, reader), left, 'an equal request changes nothing')
})

t.test('whatever comes and goes, the list is that of a new start', async (t) => {
  let seed = 7
  const random = (below: number) => (seed = (seed * 48_271) % 2_147_483_647) % below
  const none = PersistentMap.empty<readonly Request[]>()
  let parts = PersistentMap.empty<Request>()
  let requests = none
  const lists = (of: typeof none) => of.get('10.96.0.1') ?? []
  for (let round = 0; round < 300; round++) {
    const changes = Array.from({ length: random(6) }, () => {
      const owner = `o${random(12)}`
      const isGone = random(3) === 0
      const request = { owner, text: String(random(3)), isLast: random(3) === 0 }
      return [owner, isGone ? undefined : request] as const
    })
    const next = parts.update(changes)
    requests = updateRequests(requests, next.since(parts), reader)
    parts = next
    const list = lists(requests)
    t.same(list, lists(updateRequests(none, parts.since(undefined), reader)))
    const names = list.map(({ owner, isLast }) => `${isLast ? 1 : 0} ${owner}`)
    t.same(names, names.toSorted(), 'those that others may replace are behind')
  }
})
