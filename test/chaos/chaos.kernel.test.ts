/**
 * The short form of `npm run chaos`: a few faults for each mode. Slow recovery is no failure here.
 */
import t from 'tap'
import type { ModeName } from '../../lib/config/config.js'
import { cgroupSkip } from '../support/cgroup-client.js'
import { netnsSkip } from '../support/netns.js'
import { randomOf } from './fault.js'
import { faultGroups } from './faults/index.js'
import { interruptedSync } from './faults/first-sync.js'
import { play } from './play.js'
import { Stage } from './stage.js'

/**
 * A machine that does much else answers late. The clients ask less often than in `npm run chaos`,
 * because one processor does all of it; any start of a process takes longer than their pause.
 */
const pace = { patienceMs: 60_000, pauseMs: 100 }
const faults = faultGroups.flatMap((group) => group.faults)
const firstSync = interruptedSync(300, 3)

const chosen: Readonly<Record<Exclude<ModeName, 'ipvs' | 'winuserspace'>, readonly string[]>> = {
  nftables: ['SIGKILL, and a new start', 'API server killed', 'Hostile objects'],
  iptables: ['SIGTERM twice', 'Our rules flushed', 'Watches cut every 100 ms'],
  userspace: ['A successor with --takeover', 'SIGSTOP for 3 s'],
  ebpf: ['SIGKILL, and a new start', 'All socket programs detached'],
}

for (const mode of ['nftables', 'iptables', 'userspace', 'ebpf'] as const) {
  const skip = netnsSkip || (mode === 'ebpf' && cgroupSkip)
  t.test(`${mode} mode keeps what docs/reliability.md promises`, { skip }, async (t) => {
    const seed = Date.now() % 1_000_000
    t.comment(`seed ${seed}`)
    // All faults share a stage, which is large enough for the first sync to take its time.
    const stage = await Stage.open({ mode, pace, ...firstSync.stage, random: randomOf(seed) })
    t.teardown(() => stage.close())
    const begun = chosen[mode].map((name) => {
      const fault = faults.find((each) => each.name.startsWith(name))
      if (fault === undefined) throw new Error(`there is no fault ${name}`)
      return fault
    })
    for (const fault of [...begun, firstSync]) {
      await t.test(fault.name, async (t) => t.same((await play(fault, stage)).broken, []))
    }
  })
}
