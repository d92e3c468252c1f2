/** SIGKILL, SIGTERM and SIGTERM twice in the first sync of ipvs mode. Prints TAP. */
import t from 'tap'
import { randomOf } from '../../chaos/fault.js'
import { interruptedSync } from '../../chaos/faults/first-sync.js'
import { play } from '../../chaos/play.js'
import { Stage } from '../../chaos/stage.js'

const seed = Date.now() % 1_000_000
const fault = interruptedSync(30, 3)
/** More connections would take all of the machine's only processor, and the daemon waits. */
const pace = { pauseMs: 1_000 }
await t.test(`ipvs mode: ${fault.name}`, async (t) => {
  t.comment(`seed ${seed}`)
  const stage = await Stage.open({ mode: 'ipvs', ...fault.stage, random: randomOf(seed), pace })
  t.teardown(() => stage.close())
  t.same((await play(fault, stage)).broken, [])
})
