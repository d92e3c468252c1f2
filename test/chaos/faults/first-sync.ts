import { setTimeout as delay } from 'node:timers/promises'
import { allLost, type Fault, type FaultGroup } from '../fault.js'
import { remains, torn } from '../standing.js'
import type { Stage } from '../stage.js'

type End = (stage: Stage) => Promise<void>

const killed: End = ({ daemon }) => daemon.ended('SIGKILL')
const stopped: End = ({ daemon }) => daemon.ended('SIGTERM')
const stoppedTwice: End = async ({ daemon, random }) => {
  daemon.signal('SIGTERM')
  // The kernel makes one signal of two at the same time.
  await delay(random() * 50)
  await daemon.ended('SIGTERM')
}

/** The ends are used in turn, so that a few tries have each of them. */
const ends = [killed, stopped, stoppedTwice] as const

/** Ends the process at a random moment of its first sync, again and again. */
export function interruptedSync(services: number, tries: number): Fault {
  return {
    name: `SIGKILL, SIGTERM or SIGTERM twice at a random moment of the first sync, ${tries} times`,
    stage: { services },
    // Between the tries there are no rules, on purpose.
    target: allLost(15),
    inject: async (stage) => {
      await stage.inSilence(async () => {
        await stage.daemon.ended('SIGKILL')
        for (let count = 1; count <= tries; count++) await interrupt(stage, count)
        await cleanUp(stage)
        stage.daemon.start()
      })
      return undefined
    },
  }
}

async function interrupt(stage: Stage, count: number): Promise<void> {
  // Half of the starts find nothing, the other half what the try before has left.
  const isClean = stage.random() < 0.5
  if (isClean) await cleanUp(stage)
  const afterMs = Math.round(stage.random() * stage.firstSyncMs * 1.2)
  const end = ends[count % ends.length] ?? killed
  stage.daemon.start()
  await delay(afterMs)
  await end(stage)
  const parts = await torn(stage)
  // In userspace mode a process that gets SIGTERM removes its rules, because they lead to it.
  if (isClean && end === stopped && stage.mode === 'userspace')
    parts.push(...(await remains(stage)))
  if (parts.length > 0) throw new Error(`try ${count}, after ${afterMs} ms: ${parts.join('\n')}`)
}

async function cleanUp(stage: Stage): Promise<void> {
  const { code, stderr } = await stage.cleanup()
  const left = await remains(stage)
  if (code !== 0 || left.length > 0) throw new Error(`cleanup left ${left.join(', ')}: ${stderr}`)
}

export const firstSyncFaults: FaultGroup = {
  title: 'The first sync, of 1,000 Services',
  lane: 'node',
  faults: [interruptedSync(1_000, 20)],
}
