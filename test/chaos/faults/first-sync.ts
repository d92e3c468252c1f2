import { setTimeout as delay } from 'node:timers/promises'
import { allLost, type Fault, type FaultGroup } from '../fault.js'
import { remains, torn } from '../standing.js'
import type { Stage } from '../stage.js'

const services = 1_000

/** Ends the process at a random moment of a first sync, again and again. */
function interrupted(name: string, end: (stage: Stage) => Promise<void>, tries: number): Fault {
  return {
    name,
    modes: ['nftables', 'iptables', 'userspace'],
    stage: { services },
    // Between the tries nothing of ours stands, on purpose.
    target: allLost(10),
    inject: async (stage) => {
      const firstSyncMs = stage.firstSyncMs
      await stage.inSilence(async () => {
        await stage.daemon.ended('SIGKILL')
        for (let count = 1; count <= tries; count++) {
          // Half of the starts find nothing, half of them what the one before has left.
          if (stage.random() < 0.5) await cleanUp(stage)
          const afterMs = stage.random() * firstSyncMs * 1.2
          stage.daemon.start()
          await delay(afterMs)
          await end(stage)
          const parts = await torn(stage)
          if (parts.length > 0) {
            throw new Error(`try ${count}, after ${Math.round(afterMs)} ms: ${parts.join('\n')}`)
          }
        }
        await cleanUp(stage)
        stage.daemon.start()
      })
      return undefined
    },
  }
}

async function cleanUp(stage: Stage): Promise<void> {
  const { code, stderr } = await stage.kubeProxy('cleanup')
  const left = await remains(stage)
  if (code !== 0 || left.length > 0) throw new Error(`cleanup left ${left.join(', ')}: ${stderr}`)
}

export const interruptedSyncs = (tries: number): readonly Fault[] => [
  interrupted(
    `SIGKILL at a random moment of the first sync, ${tries} times`,
    async ({ daemon }) => daemon.ended('SIGKILL'),
    tries,
  ),
  interrupted(
    `SIGTERM twice at a random moment of the first sync, ${tries} times`,
    async ({ daemon }) => {
      daemon.signal('SIGTERM')
      await daemon.ended('SIGTERM')
    },
    tries,
  ),
]

export const firstSyncFaults: FaultGroup = {
  title: `The first sync, of ${services.toLocaleString('en')} Services`,
  lane: 'node',
  faults: interruptedSyncs(20),
}
