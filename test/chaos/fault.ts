import type { ModeName } from '../../lib/config/config.js'
import type { Stage, StageOptions } from './stage.js'

/** The connections that clients may lose: none, or those until everything works again. */
export type Loss = 'nothing' | 'until repaired'

/** A promise of docs/reliability.md, which `npm run chaos` checks. */
export interface Target {
  /** Connections that are made during the fault. */
  readonly fresh: Loss
  /** Connections that were open before. */
  readonly open: Loss
  /** The time from the end of `inject` until every client is served and a change has arrived. */
  readonly seconds: number
}

/** One way to break a running daemon. */
export interface Fault {
  /** Plain words for the tables; `--only` finds the fault by them. */
  readonly name: string
  /** The modes with this fault; absent: all. */
  readonly modes?: readonly ModeName[]
  /** How the daemon is started for it. Such a fault gets a stage that it does not share. */
  readonly stage?: Partial<StageOptions>
  /** The target in the modes that `targets` does not name. */
  readonly target: Target
  readonly targets?: Readonly<Partial<Record<ModeName, Target>>>
  /**
   * Breaks something. The function that it returns ends the fault after clients are served again.
   * If it returns none, the fault ends with it.
   */
  inject(stage: Stage): Promise<Mend | undefined>
}

export type Mend = () => Promise<void>

/** Faults under one heading. */
export interface FaultGroup {
  readonly title: string
  /** With `--minutes`, faults of different lanes happen at once. */
  readonly lane: 'node' | 'api'
  readonly faults: readonly Fault[]
}

export const nothingLost = (seconds: number): Target => ({
  fresh: 'nothing',
  open: 'nothing',
  seconds,
})

/** The rules are gone for a while: open connections go on, new ones are refused meanwhile. */
export const newOnesRefused = (seconds: number): Target => ({
  fresh: 'until repaired',
  open: 'nothing',
  seconds,
})

/** A process that carries connections is dead for a while: all of them may be lost. */
export const allLost = (seconds: number): Target => ({
  fresh: 'until repaired',
  open: 'until repaired',
  seconds,
})

export const targetOf = (fault: Fault, mode: ModeName): Target =>
  fault.targets?.[mode] ?? fault.target

export const playsIn = (fault: Fault, mode: ModeName): boolean =>
  fault.modes?.includes(mode) ?? true

/** Random numbers from 0 up to 1, the same in every run with the same seed. */
export function randomOf(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

export function pick<T>(list: readonly T[], random: () => number): T {
  const chosen = list[Math.floor(random() * list.length)]
  if (chosen === undefined) throw new Error('there is nothing to choose from')
  return chosen
}
