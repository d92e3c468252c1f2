/** What a simulation takes from outside. */
export interface SimulationDeps {
  readonly now: () => number
  /** From 0 to 1. */
  readonly random: () => number
}
