import type { CheckCounts, CheckTarget, Turn } from './messages.js'
import type { Outcome } from './outcome.js'
import type { Turns } from './turns.js'

/**
 * How many checks run at a time. One namespace may use half of them: enough for 10,000 endpoints of
 * which a tenth never answers. They are few descriptors for any process.
 */
export const mostAtATime = 400

interface ScheduleDeps {
  readonly probe: (target: CheckTarget) => Promise<Outcome>
  readonly turned: (turn: Turn) => void
  /** Milliseconds of a clock that nobody can set. */
  readonly now: () => number
  /** A number from 0 up to 1. */
  readonly random: () => number
  readonly turns: Pick<Turns, 'wait' | 'cancel'>
  /** How many checks run at a time. */
  readonly most: number
}

interface Entry {
  readonly target: CheckTarget
  isFailing: boolean
  /** The reason that was reported last. */
  reason: string | undefined
  /** Outcomes in a row that speak against `isFailing`. */
  streak: number
  isGone: boolean
  /** The turn at which it is due, and the call at that turn. */
  turn: number
  readonly begin: () => void
}

/**
 * Decides when each endpoint is checked, and what its answers mean. The first checks are spread
 * over an interval. Every interval is up to a fiftieth shorter, so that checks of many endpoints,
 * or of many nodes, that fall together once do not stay together. Checks above the limit wait for
 * their turn. One namespace has at most as many places as it leaves free, so thousands of endpoints
 * that never answer do not hold up the checks of others.
 */
export class Schedule {
  readonly #deps: ScheduleDeps
  readonly #entries = new Map<string, Entry>()
  /** By namespace, in order of the time at which they were due. */
  readonly #due = new Map<string, Set<Entry>>()
  /** How many checks run, by namespace. */
  readonly #running = new Map<string, number>()
  #free: number
  #counts = { good: 0, bad: 0, unknown: 0 }

  constructor(deps: ScheduleDeps) {
    this.#deps = deps
    this.#free = deps.most
  }

  set(target: CheckTarget): void {
    const { reason } = target
    this.remove(target.id)
    const begin = () => {
      const { namespace } = target
      const due = this.#due.get(namespace) ?? new Set()
      this.#due.set(namespace, due.add(entry))
      this.#begin()
    }
    const isFailing = reason !== undefined
    const entry: Entry = { target, isFailing, reason, streak: 0, isGone: false, turn: 0, begin }
    this.#entries.set(target.id, entry)
    this.#plan(entry, this.#deps.random() * target.check.intervalMs)
  }

  remove(id: string): void {
    const entry = this.#entries.get(id)
    if (!entry) return
    entry.isGone = true
    this.#deps.turns.cancel(entry.turn, entry.begin)
    this.#due.get(entry.target.namespace)?.delete(entry)
    this.#entries.delete(id)
  }

  /** The number of checks since the last call, by outcome. */
  takeCounts(): CheckCounts {
    const counts = this.#counts
    this.#counts = { good: 0, bad: 0, unknown: 0 }
    return counts
  }

  #plan(entry: Entry, ms: number): void {
    entry.turn = this.#deps.turns.wait(ms, entry.begin)
  }

  #begin(): void {
    for (const [namespace, due] of this.#due) {
      if (this.#free === 0) return
      for (const entry of due) {
        if ((this.#running.get(namespace) ?? 0) >= this.#free) break
        due.delete(entry)
        void this.#check(entry)
      }
      if (due.size === 0) this.#due.delete(namespace)
    }
  }

  #count(namespace: string, more: 1 | -1): void {
    const running = (this.#running.get(namespace) ?? 0) + more
    if (running === 0) this.#running.delete(namespace)
    else this.#running.set(namespace, running)
    this.#free -= more
  }

  async #check(entry: Entry): Promise<void> {
    const { now, random, probe } = this.#deps
    const { namespace, check } = entry.target
    const began = now()
    this.#count(namespace, 1)
    const outcome = await probe(entry.target)
    this.#count(namespace, -1)
    this.#counts[outcome.kind]++
    if (!entry.isGone) {
      this.#account(entry, outcome)
      const pause = check.intervalMs * (1 - random() / 50)
      this.#plan(entry, Math.max(0, began + pause - now()))
    }
    this.#begin()
  }

  #account(entry: Entry, outcome: Outcome): void {
    if (outcome.kind === 'unknown') return
    const reason = outcome.kind === 'bad' ? outcome.reason : undefined
    if (entry.isFailing === (outcome.kind === 'bad')) {
      entry.streak = 0
      // People who look for the cause need the newest reason.
      if (reason !== entry.reason) this.#tell(entry, reason)
      return
    }
    entry.streak++
    const { rise, fall } = entry.target.check
    if (entry.streak < (entry.isFailing ? rise : fall)) return
    entry.isFailing = !entry.isFailing
    entry.streak = 0
    this.#tell(entry, reason)
  }

  #tell(entry: Entry, reason: string | undefined): void {
    entry.reason = reason
    this.#deps.turned({ id: entry.target.id, reason })
  }
}
