import type { ModeName } from '../../lib/config/config.js'
import type { Stage, StageOptions } from './stage.js'

/** What clients may lose: nothing, or what they try until everything works again. */
export type Loss = 'nothing' | 'until repaired'

/** What docs/reliability.md promises, and what `npm run chaos` checks. */
export interface Target {
  /** Connections that are made meanwhile. */
  readonly fresh: Loss
  /** Connections that were open before. */
  readonly open: Loss
  /** From the end of `inject` until every client is served and a change of endpoints has arrived. */
  readonly seconds: number
}

/** One way to break a running daemon. */
export interface Fault {
  /** In plain words: the tables show it, and `--only` finds it. */
  readonly name: string
  /** All modes when absent. */
  readonly modes?: readonly ModeName[]
  /** How the daemon is started for it; it then gets a stage of its own. */
  readonly stage?: Partial<StageOptions>
  /** What is true in the modes that `targets` does not name. */
  readonly target: Target
  readonly targets?: Readonly<Partial<Record<ModeName, Target>>>
  /**
   * Breaks something. What it gives back ends the fault, once its targets are checked; without it
   * the fault is over when this is.
   */
  inject(stage: Stage): Promise<Mend | undefined>
}

export type Mend = () => Promise<void>

/** Faults under one heading. */
export interface FaultGroup {
  readonly title: string
  /** With `--minutes`, faults of different lanes are there at once. */
  readonly lane: 'node' | 'api'
  readonly faults: readonly Fault[]
}

export const nothingLost = (seconds: number): Target => ({
  fresh: 'nothing',
  open: 'nothing',
  seconds,
})

/** The rules were gone: open connections go on, new ones are refused until they are back. */
export const newOnesRefused = (seconds: number): Target => ({
  fresh: 'until repaired',
  open: 'nothing',
  seconds,
})

/** What a dead process must lose. */
export const allLost = (seconds: number): Target => ({
  fresh: 'until repaired',
  open: 'until repaired',
  seconds,
})

export const targetOf = (fault: Fault, mode: ModeName): Target =>
  fault.targets?.[mode] ?? fault.target

export const playsIn = (fault: Fault, mode: ModeName): boolean =>
  fault.modes?.includes(mode) ?? true

/** Random, but the same in every run with the same seed: from 0 up to 1. */
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
