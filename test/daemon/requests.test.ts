import t from 'tap'
import { DaemonRequests } from '../../lib/daemon/daemon-requests.js'
import { playTime } from '../support/played-time.js'

const nothing = () => undefined
const meter = { count: nothing, gauge: nothing, observe: nothing, forget: nothing }
const time = playTime()

function requesting() {
  const seen = { asked: 0, changes: 0, warnings: [] as string[] }
  let at = 0
  const requests = new DaemonRequests({
    log: {
      ...{ debug: nothing, info: nothing, error: nothing },
      warn: (_fields, message) => void seen.warnings.push(message),
    },
    forMode: { meter },
    loop: { request: () => seen.asked++ },
    observation: { queued: nothing, changedByOthers: () => seen.changes++ },
    now: () => at,
  })
  const pass = (ms: number) => {
    at += ms
    return time.pass(ms)
  }
  const change = () => requests.modeContext.resync('process 7 (other) did it', { byOthers: true })
  return { requests, seen, pass, change }
}

t.test('R01: a mode that asks for a sync gets none before all objects are known', async (t) => {
  const { requests, seen, change } = requesting()
  change()
  t.equal(seen.asked, 0, 'it would write the rules of a cluster without Services')
  requests.sync()
  t.equal(seen.asked, 1)
  t.ok(requests.takeFull(), 'the first sync writes everything')
  change()
  t.equal(seen.asked, 2)
})

t.test('repairs of what another program does again and again become rare', async (t) => {
  const { requests, seen, pass, change } = requesting()
  requests.sync()
  requests.takeFull()
  const changeAndLook = () => {
    const { asked } = seen
    change()
    return seen.asked > asked && requests.takeFull()
  }
  for (let repairs = 0; repairs < 10; repairs++) {
    t.ok(changeAndLook(), 'at once')
    await pass(500)
  }
  t.notOk(changeAndLook(), 'the eleventh waits')
  const { asked } = seen
  change()
  await pass(9_000)
  t.equal(seen.asked, asked)
  await pass(500)
  t.equal(seen.asked, asked + 1, 'until 10 s have passed since the one before')
  t.ok(requests.takeFull())
  const texts = seen.warnings.filter((text) => text.includes('look for a second kube-proxy'))
  t.equal(texts.length, 1, 'and the log says what to do')
  t.equal(seen.changes, 12, 'all changes are counted')
  t.equal(seen.warnings.length, 11, 'the lines of single changes end with that')

  await pass(1_000)
  t.notOk(changeAndLook())
  requests.sync()
  t.ok(requests.takeFull(), 'a change of objects repairs at once')
  const afterSync = seen.asked
  await pass(60_000)
  t.equal(seen.asked, afterSync, 'once')
  t.ok(changeAndLook(), 'rare changes are repaired at once')
  await pass(600_000)
  for (let repairs = 0; repairs < 10; repairs++) t.ok(changeAndLook(), 'so are those of tomorrow')

  seen.warnings.length = 0
  for (let minutes = 0; minutes < 21; minutes += 1 / 6) {
    change()
    await pass(10_000)
    requests.takeFull()
  }
  t.equal(seen.warnings.length, 3, 'a dispute that lasts is told once in ten minutes')

  for (let changes = 0; changes < 20; changes++) {
    change()
    requests.sync()
    t.ok(requests.takeFull())
    await pass(500)
  }
  change()
  const early = seen.asked
  await pass(10_000)
  t.equal(seen.asked, early + 1, 'repairs by changes of objects do not make the next one later')
})
