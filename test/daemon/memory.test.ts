import t from 'tap'
import { freeStartMemory, memoryWatch } from '../../lib/daemon/memory.js'
import type { StateUpdate } from '../../lib/state/tracker.js'
import { service, states } from '../support/states.js'

const mebibyte = 1024 * 1024

function watching(limit: number | undefined, heap = Number.MAX_SAFE_INTEGER) {
  const warnings: object[] = []
  const silent = () => undefined
  const log = { debug: silent, info: silent, warn: (fields: object) => warnings.push(fields) }
  const watch = memoryWatch('userspace', { limit, heap }, { ...log, error: silent })
  const cluster = states()
  const start = (count: number) => {
    for (let index = 0; index < count; index++) {
      const clusterIp = `10.96.${index >> 7}.${1 + (index & 127)}`
      cluster.put(service({ name: `s${index}`, clusterIp, endpoints: 9 }))
    }
    const update: Pick<StateUpdate, 'states'> = { states: [cluster.take()] }
    watch.started(update as StateUpdate)
  }
  return { warnings, start, came: watch.came }
}

t.test('Services that do not fit the memory limit are said, before they are written', async (t) => {
  const { warnings, start } = watching(66 * mebibyte)
  start(50)
  t.same(warnings, [], 'they fit')
  start(200)
  t.match(warnings, [{ limitMiB: 66, neededMiB: 69, servicePorts: 200, endpoints: 1800 }])
  start(210)
  t.equal(warnings.length, 1, 'a few more are no news')
  start(400)
  t.equal(warnings.length, 2)
})

t.test('a limit that is far too low is said while the objects come, and once', async (t) => {
  const { warnings, came, start } = watching(66 * mebibyte)
  came('servicePorts', 100)
  came('endpoints', 900)
  t.same(warnings, [], 'so many fit')
  came('endpoints', 100)
  t.match(warnings, [{ limitMiB: 66, neededMiB: 67, servicePorts: 100, endpoints: 1000 }])
  came('endpoints', 100)
  t.equal(warnings.length, 1)
  start(200)
  t.match(warnings[1], { servicePorts: 200, endpoints: 1800 }, 'all of them are known')
  came('endpoints', 10_000)
  t.equal(warnings.length, 2)
})

t.test('a heap that V8 keeps too small is said, although the memory limit suffices', async (t) => {
  const { warnings, start } = watching(100 * mebibyte, 44 * mebibyte)
  start(50)
  t.same(warnings, [], 'they fit')
  start(200)
  t.match(warnings, [{ heapLimitMiB: 44, neededMiB: 69, servicePorts: 200, endpoints: 1800 }])
})

t.test('without a memory limit nothing is said', async (t) => {
  for (const limit of [undefined, 0, Number.MAX_SAFE_INTEGER]) {
    const { warnings, start } = watching(limit)
    start(400)
    t.same(warnings, [])
  }
})

t.test('memory for the start is freed after the first rules, not before', async (t) => {
  const stop = new AbortController()
  const allApplied = new AbortController()
  let isDone = false
  const freeing = freeStartMemory(allApplied.signal, stop.signal, 0).then(() => (isDone = true))
  let lists: object[] | undefined = Array.from({ length: 500_000 }, (_, index) => ({ index }))
  t.equal(lists.length, 500_000)
  lists = undefined
  const used = () => process.memoryUsage().heapUsed / mebibyte
  const before = used()
  await new Promise((resolve) => setTimeout(resolve, 20))
  t.notOk(isDone, 'nothing is in the kernel yet')
  allApplied.abort()
  await freeing
  t.ok(used() < before - 10)
  await freeStartMemory(allApplied.signal, AbortSignal.abort(), 60_000)
})
