/** The inputs of a simulation. */
export interface SimulationDeps {
  readonly now: () => number
  /** From 0 to 1. */
  readonly random: () => number
}
