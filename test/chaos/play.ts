import { setTimeout as delay } from 'node:timers/promises'
import type { ModeName } from '../../lib/config/config.js'
import { messageOf } from '../../lib/errors.js'
import { targetOf, type Fault, type Loss, type Target } from './fault.js'
import type { Stage } from './stage.js'
import type { Count, Tally } from './traffic.js'

/** The outcome of a fault in a mode. */
export interface Outcome {
  readonly fault: string
  readonly mode: ModeName
  readonly fresh: Count
  readonly open: Count
  readonly seconds: number
  readonly target: Target
  /**
   * The promises that were broken. Those about time are not here, as they depend on the machine.
   */
  readonly broken: readonly string[]
  readonly slow: boolean
}

/** For so long nothing may be lost after everything works again. */
const calmMs = 500

/** Breaks a stage and counts what is lost until it recovers. Throws if it does not recover. */
export async function play(fault: Fault, stage: Stage): Promise<Outcome> {
  const { mode } = stage
  const target = targetOf(fault, mode)
  stage.traffic.take()
  try {
    const mend = await fault.inject(stage)
    const since = performance.now()
    await stage.recovered(since)
    const recoveredAt = performance.now()
    await delay(calmMs)
    await mend?.()
    await stage.recovered(performance.now())
    const tally = stage.traffic.take()
    const seconds = (recoveredAt - since) / 1000
    const differences = await stage.differences()
    const broken = [
      ...missed('new', tally.fresh, target.fresh, tally),
      ...missed('open', tally.open, target.open, tally),
      ...(tally.latest.at > recoveredAt ? [`lost after recovery: ${tally.latest.what}`] : []),
      ...(differences === '' ? [] : [`kernel and plan differ: ${differences}`]),
    ]
    const { fresh, open } = tally
    const slow = seconds > target.seconds
    return { fault: fault.name, mode, fresh, open, seconds, target, broken, slow }
  } catch (error) {
    throw new Error(`${messageOf(error)}\nthe daemon said:\n${lastLines(stage)}`, { cause: error })
  }
}

/** The losses that a promise does not allow. */
export function missed(
  what: string,
  count: Count,
  loss: Loss,
  { losses }: Tally,
): readonly string[] {
  if (loss !== 'nothing' || count.lost === 0) return []
  return [`${count.lost} of ${count.tried} ${what} connections were lost: ${losses.join('; ')}`]
}

const lastLines = (stage: Stage) => stage.daemon.output().split('\n').slice(-20).join('\n')
