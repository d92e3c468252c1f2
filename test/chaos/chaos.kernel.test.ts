/** The short form of `npm run chaos`: a few faults for each mode. No clock decides here. */
import t, { type Test } from 'tap'
import type { ModeName } from '../../lib/config/config.js'
import { netnsSkip } from '../support/netns.js'
import { randomOf, type Fault } from './fault.js'
import { faultGroups } from './faults/index.js'
import { interruptedSyncs } from './faults/first-sync.js'
import { play } from './play.js'
import { Stage } from './stage.js'

const faults = faultGroups.flatMap((group) => group.faults)

const chosen: Readonly<Record<Exclude<ModeName, 'ipvs'>, readonly string[]>> = {
  nftables: ['SIGKILL, and a new start', 'Our rules flushed', 'Watches cut every 100 ms'],
  iptables: ['SIGTERM, and a new start', 'Our rules flushed', 'API server killed'],
  userspace: ['A successor with --takeover', 'SIGSTOP for 3 s', 'Hostile objects'],
}

for (const mode of ['nftables', 'iptables', 'userspace'] as const) {
  t.test(`${mode} mode keeps its promises`, { skip: netnsSkip }, async (t) => {
    const stage = await Stage.open({ mode })
    t.teardown(() => stage.close())
    for (const name of chosen[mode]) {
      const fault = faults.find((each) => each.name.startsWith(name))
      if (fault === undefined) throw new Error(`there is no fault ${name}`)
      await t.test(fault.name, async (t) => t.same((await play(fault, stage)).broken, []))
    }
  })

  t.test(`${mode} mode ends in the middle of a first sync`, { skip: netnsSkip }, async (t) => {
    for (const fault of interruptedSyncs(3)) await once(t, fault, mode)
  })
}

async function once(t: Test, fault: Fault, mode: ModeName): Promise<void> {
  const seed = Date.now() % 1_000_000
  await t.test(`${fault.name}, seed ${seed}`, async (t) => {
    const stage = await Stage.open({ mode, ...fault.stage, random: randomOf(seed) })
    t.teardown(() => stage.close())
    t.same((await play(fault, stage)).broken, [])
  })
}
