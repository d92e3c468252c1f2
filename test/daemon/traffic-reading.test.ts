import t from 'tap'
import { setTimeout as sleep } from 'node:timers/promises'
import { TrafficReading } from '../../lib/daemon/traffic-reading.js'
import { untilTrue } from '../support/until.js'

t.test('numbers that nobody reads are read now and then', async (t) => {
  let readings = 0
  const traffic = new TrafficReading(() => Promise.resolve(readings++), 5)
  const stop = new AbortController()
  const running = traffic.run(stop.signal)
  await untilTrue(() => readings >= 3)
  stop.abort()
  await running
  const last = readings
  await sleep(20)
  t.equal(readings, last, 'not after the signal')
})

t.test('where somebody reads them, nothing else does', async (t) => {
  let readings = 0
  const traffic = new TrafficReading(() => Promise.resolve(readings++), 3_600_000)
  const stop = new AbortController()
  const running = traffic.run(stop.signal)
  await traffic.read()
  await sleep(20)
  stop.abort()
  await running
  t.equal(readings, 1)
})
