import type { ServiceShorthand, Step } from './case.js'
import { buildCaseService } from './objects.js'
import type { CaseService } from './objects.js'

/** The Services of one case; every step adds to them. */
export class CaseServices {
  readonly #shorthands = new Map<string, ServiceShorthand>()
  readonly #serials = new Map<string, number>()
  readonly #removed = new Set<string>()
  readonly #nextSerial: () => number

  constructor(nextSerial: () => number) {
    this.#nextSerial = nextSerial
  }

  take(step: Step): void {
    for (const [name, patch] of Object.entries(step.services)) {
      if (!this.#serials.has(name)) this.#serials.set(name, this.#nextSerial())
      if (patch === null) this.#removed.add(name)
      else {
        this.#removed.delete(name)
        this.#shorthands.set(name, { ...this.#shorthands.get(name), ...patch })
      }
    }
  }

  /** Every Service of this case so far. Removed ones stay, because flows may still go to them. */
  known(): ReadonlyMap<string, CaseService> {
    return new Map(
      [...this.#shorthands].map(([name, shorthand]) => [
        name,
        buildCaseService(name, shorthand, this.#serials.get(name) ?? 0),
      ]),
    )
  }

  present(): readonly CaseService[] {
    return [...this.known().values()].filter(({ name }) => !this.#removed.has(name))
  }
}
