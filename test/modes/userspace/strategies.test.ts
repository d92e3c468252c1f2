import t from 'tap'
import { Balancer } from '../../../lib/modes/userspace/datapath/balancer.js'
import { userspacePlanner } from '../../../lib/modes/userspace/plan.js'
import { renderPlan } from '../../../lib/modes/userspace/render.js'
import { sourceBucket } from '../../../lib/kernel/jenkins-hash.js'
import type { Balance } from '../../../lib/state/balance.js'
import type { Target } from '../../../lib/modes/userspace/datapath/data-path.js'
import { service, state, testSettings } from '../../support/states.js'

/** `kube-proxy-ts/balance` in userspace mode. */

const target = (key: string): Target => ({ key, ip: '10.0.0.1', port: 80 })
const clients = Array.from({ length: 10_000 }, (_, index) => `10.9.${index >> 8}.${index & 255}`)
const hundred = Array.from({ length: 100 }, (_, index) => `10.180.0.${index}:80`)

interface Options {
  readonly weights?: Readonly<Record<string, number>>
  readonly passiveHealth?: boolean
}

function balancer(word: Balance, keys: readonly string[], options: Options = {}) {
  const { weights = {}, passiveHealth = false } = options
  let seed = 1
  const random = () => (seed = (seed * 48_271) % 2_147_483_647) / 2_147_483_647
  const balance = { word, weights: Object.entries(weights) }
  const made = new Balancer(
    { now: () => 0, random, passiveHealth },
    { endpoints: keys.map(target), affinityMs: undefined, balance },
  )
  return {
    made,
    pick: (client = '', tried: readonly Target[] = []) => made.pick(client, tried),
    /** The endpoint of each client; its connection ends at once. */
    chosen: (of: readonly string[] = clients) =>
      of.map((client) => {
        const found = made.pick(client)
        if (found) made.ended(found)
        return found?.key ?? ''
      }),
    remove: (key: string) =>
      made.update({ removed: [key], added: [], affinityMs: undefined, balance }),
  }
}

const share = (chosen: readonly string[], key: string) =>
  chosen.filter((each) => each === key).length / chosen.length

t.test('random: each gets its share, and not in turn', async (t) => {
  const chosen = balancer('random', ['a', 'b', 'c', 'd']).chosen()
  for (const key of ['a', 'b', 'c', 'd']) t.ok(Math.abs(share(chosen, key) - 0.25) < 0.05, key)
  t.not(chosen.slice(0, 40).join(''), 'abcd'.repeat(10))
})

t.test('weighted: shares are as the weights, and weight 0 gets nothing', async (t) => {
  const weights = { a: 6, b: 3, c: 0 }
  const chosen = balancer('weighted', ['a', 'b', 'c', 'd'], { weights }).chosen()
  t.ok(Math.abs(share(chosen, 'a') - 0.6) < 0.05)
  t.ok(Math.abs(share(chosen, 'b') - 0.3) < 0.05)
  t.ok(Math.abs(share(chosen, 'd') - 0.1) < 0.03, 'without a word it is 1')
  t.equal(share(chosen, 'c'), 0)
  const zero = balancer('weighted', ['a', 'b'], { weights: { a: 0, b: 0 } }).chosen()
  t.ok(share(zero, 'a') > 0.4 && share(zero, 'b') > 0.4, 'none has more than none')
})

t.test('first: one gets all, the next only while it fails', async (t) => {
  const { pick, made, chosen } = balancer('first', ['b', 'a', 'c'], { passiveHealth: true })
  t.equal(share(chosen(), 'a'), 1)
  const first = pick()
  t.equal(pick('', first ? [first] : [])?.key, 'b')
  made.dialFailed(target('a'))
  t.equal(pick()?.key, 'b', 'a failing one waits for its time')
  made.dialSucceeded(target('a'))
  t.equal(pick()?.key, 'a')
  const weighted = balancer('first', ['a', 'b', 'c'], { weights: { c: 5 } })
  t.equal(weighted.pick()?.key, 'c')
})

t.test('least-connections: exact, also when connections end', async (t) => {
  const { pick, made } = balancer('least-connections', ['a', 'b', 'c'])
  const open = [pick(), pick(), pick(), pick(), pick(), pick()].map((each) => each?.key)
  t.same(open.toSorted(), ['a', 'a', 'b', 'b', 'c', 'c'])
  made.ended(target('b'))
  made.ended(target('b'))
  t.same([pick()?.key, pick()?.key], ['b', 'b'])
  made.ended(target('c'))
  t.equal(pick()?.key, 'c')
  const turns = balancer('least-connections', ['a', 'b', 'c']).chosen(['', '', ''])
  t.equal(new Set(turns).size, 3, 'those with equally many take turns')
})

t.test('source-hash: a client stays, and the first choice is that of the kernel', async (t) => {
  const keys = ['a', 'b', 'c', 'd', 'e']
  const { chosen, pick } = balancer('source-hash', keys.toReversed())
  const first = chosen()
  t.same(chosen(), first)
  t.same(
    first,
    clients.map((client) => keys[sourceBucket(client, 5)]),
  )
  for (const key of keys) t.ok(Math.abs(share(first, key) - 0.2) < 0.05, key)
  const own = pick('10.9.0.1')
  const other = pick('10.9.0.1', own ? [own] : [])
  t.not(other?.key, own?.key, 'another one when it does not answer')
})

t.test('maglev: without one of 100 endpoints at most 2 % of the others move', async (t) => {
  const world = balancer('maglev', hundred)
  const before = world.chosen()
  for (const key of hundred) {
    const part = share(before, key)
    t.ok(part > 0.005 && part < 0.015, `${key} has ${part}`)
  }
  const gone = hundred[41] ?? ''
  world.remove(gone)
  const after = world.chosen()
  t.equal(share(after, gone), 0)
  const others = before.filter((key) => key !== gone).length
  const moved = before.filter((key, index) => key !== gone && key !== after[index]).length
  t.comment(`${moved} of ${others} moved`)
  t.ok(moved / others <= 0.02, `${moved} of ${others}`)
  const fresh = balancer('maglev', hundred.filter((key) => key !== gone).toReversed())
  t.same(fresh.chosen(), after, 'every node comes to the same, whatever it has seen')
})

t.test('the way to choose changes while the proxy runs, and counts go on', async (t) => {
  const { pick, made } = balancer('round-robin', ['a', 'b'])
  t.same([pick()?.key, pick()?.key, pick()?.key].toSorted().length, 3)
  made.update({
    ...{ removed: [], added: [target('c')], affinityMs: undefined },
    balance: { word: 'least-connections', weights: [] },
  })
  t.equal(pick()?.key, 'c', 'it has no connection, and the others have')
  made.update({ removed: [], added: [], affinityMs: undefined })
  t.equal(new Set([pick()?.key, pick()?.key, pick()?.key]).size, 3)
})

t.test('render tells how endpoints are chosen', async (t) => {
  const options = { balance: 'weighted' }
  const weighted = service({
    options,
    endpoints: [{ ip: '10.180.0.1', weight: 3 }, { ip: '10.180.0.2' }],
  })
  const plan = userspacePlanner(testSettings)(state([weighted]))
  t.match(
    renderPlan(plan, testSettings),
    /for default\/web:http \(cluster, weighted\): 10\.180\.0\.1:8080\*3 10\.180\.0\.2:8080\n/,
  )
})
