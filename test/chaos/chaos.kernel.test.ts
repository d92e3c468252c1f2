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

/** A machine that does much else answers late. */
const pace = { patienceMs: 60_000 }
const faults = faultGroups.flatMap((group) => group.faults)

const chosen: Readonly<Record<Exclude<ModeName, 'ipvs' | 'winuserspace'>, readonly string[]>> = {
  nftables: ['SIGKILL, and a new start', 'API server killed', 'Hostile objects'],
  iptables: ['SIGTERM twice', 'Our rules flushed', 'Watches cut every 100 ms'],
  userspace: ['A successor with --takeover', 'SIGSTOP for 3 s'],
  ebpf: ['SIGKILL, and a new start', 'All socket programs detached'],
}

for (const mode of ['nftables', 'iptables', 'userspace', 'ebpf'] as const) {
  const skip = netnsSkip || (mode === 'ebpf' && cgroupSkip)
  t.test(`${mode} mode keeps what docs/reliability.md promises`, { skip }, async (t) => {
    const stage = await Stage.open({ mode, pace })
    t.teardown(() => stage.close())
    for (const name of chosen[mode]) {
      const fault = faults.find((each) => each.name.startsWith(name))
      if (fault === undefined) throw new Error(`there is no fault ${name}`)
      await t.test(fault.name, async (t) => t.same((await play(fault, stage)).broken, []))
    }
  })

  const seed = Date.now() % 1_000_000
  const fault = interruptedSync(300, 3)
  t.test(`${mode} mode: ${fault.name}`, { skip }, async (t) => {
    t.comment(`seed ${seed}`)
    const stage = await Stage.open({ mode, pace, ...fault.stage, random: randomOf(seed) })
    t.teardown(() => stage.close())
    t.same((await play(fault, stage)).broken, [])
  })
}
