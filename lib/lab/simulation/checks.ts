import { aborted } from '../../async.js'
import { mostAtATime, Schedule } from '../../sources/health/schedule.js'
import { Turns, turnMs } from '../../sources/health/turns.js'
import type { CheckReport, CheckTarget } from '../../sources/health/messages.js'
import type { Checker } from '../../sources/health/health-checks.js'
import type { Outcome } from '../../sources/health/outcome.js'
import type { SimulationDeps } from './choices.js'

interface SimulatedCheckerDeps extends SimulationDeps {
  /** What a check of this endpoint finds. */
  readonly probe: (target: CheckTarget) => Outcome
  readonly reported: (report: CheckReport) => void
}

/** Checks without a thread, with the product's times and counts. Only answers are simulated. */
export class SimulatedChecker implements Checker {
  readonly #schedule: Schedule
  readonly #ids = new Set<string>()

  constructor({ now, random, probe, reported }: SimulatedCheckerDeps) {
    const timer = (ms: number, then: () => void) => {
      const started = setTimeout(then, ms)
      return () => clearTimeout(started)
    }
    this.#schedule = new Schedule({
      ...{ now, random, most: mostAtATime },
      turns: new Turns({ now, timer, turnMs }),
      probe: (target) => Promise.resolve(probe(target)),
      turned: (turn) => reported({ turns: [turn], counts: this.#schedule.takeCounts() }),
    })
  }

  set(target: CheckTarget): void {
    this.#ids.add(target.id)
    this.#schedule.set(target)
  }

  remove(id: string): void {
    this.#ids.delete(id)
    this.#schedule.remove(id)
  }

  flush(): void {
    // Targets count at once: there is no thread to tell.
  }

  async run(signal: AbortSignal): Promise<void> {
    await aborted(signal)
    for (const id of this.#ids) this.remove(id)
  }
}
