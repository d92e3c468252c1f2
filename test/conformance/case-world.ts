import type { Agent } from '../../lib/lab/world/agent.js'
import type { Place } from '../../lib/lab/world/topology.js'

/** What cases need of a world: real namespaces, or a simulation. */
export interface CaseWorld {
  agent(place: Place): Pick<Agent, 'flow' | 'send' | 'forget' | 'stray'>
  exec(place: Place, argv: readonly string[]): Promise<unknown>
  /** Lets time pass; absent where it passes by itself. */
  pass?(ms: number): void
}
