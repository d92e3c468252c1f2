/** Many things that wait, and one timer. */
import t from 'tap'
import { Turns } from '../../../lib/sources/health/turns.js'

const turnMs = 50

/** Turns of a clock that the test sets. */
function played() {
  let time = 1000
  let timer: { readonly at: number; readonly then: () => void } | undefined
  let timers = 0
  const turns = new Turns({
    turnMs,
    now: () => time,
    timer: (ms, then) => {
      timers++
      const mine = { at: time + ms, then }
      timer = mine
      return () => {
        if (timer === mine) timer = undefined
      }
    },
  })
  const said: string[] = []
  const say = (word: string) => () => void said.push(`${word} ${time}`)
  /** Fires the timer, so many ms too early or too late. */
  const fire = (offMs = 0) => {
    const fired = timer
    if (!fired) throw new Error('nothing waits')
    timer = undefined
    time = fired.at + offMs
    fired.then()
  }
  return { turns, said, say, fire, isWaiting: () => timer !== undefined, timers: () => timers }
}

t.test('waits that end in one turn are called together, and never late', (t) => {
  const { turns, said, say, fire, isWaiting, timers } = played()
  turns.wait(149, say('a'))
  turns.wait(120, say('b'))
  turns.wait(0, say('next'))
  turns.wait(10_000, say('last'))
  fire()
  fire()
  t.same(said, ['next 1050', 'a 1100', 'b 1100'])
  fire()
  t.equal(said.pop(), 'last 11000')
  t.notOk(isWaiting())
  t.equal(timers(), 4, 'the second one came before the first')
  t.end()
})

t.test('a timer that fires early or late skips nothing and calls nothing twice', (t) => {
  const { turns, said, say, fire, isWaiting } = played()
  turns.wait(100, say('a'))
  turns.wait(200, say('b'))
  turns.wait(300, say('c'))
  fire(-0.5)
  t.same(said, ['a 1099.5'])
  fire(120)
  t.same(said.slice(1), ['b 1320', 'c 1320'], 'the thread was held up')
  t.notOk(isWaiting())
  t.end()
})

t.test('a called function may wait again, also when the timer was early', (t) => {
  const { turns, said, say, fire } = played()
  turns.wait(100, () => turns.wait(0, say('again')))
  fire(-0.5)
  t.same(said, [])
  fire()
  t.same(said, ['again 1100'])
  t.end()
})

t.test('a cancelled wait is not called, and sets no timer', (t) => {
  const { turns, said, say, fire, isWaiting } = played()
  const one = say('one')
  const at = turns.wait(100, one)
  turns.wait(100, say('other'))
  const alone = say('alone')
  turns.cancel(turns.wait(500, alone), alone)
  turns.cancel(at, one)
  fire()
  t.same(said, ['other 1100'])
  t.notOk(isWaiting())
  t.end()
})
