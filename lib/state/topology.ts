import type { Candidate } from './endpoints.js'
import type { Endpoint } from './desired-state.js'

export interface Categorized {
  readonly clusterEndpoints: readonly Endpoint[]
  readonly localEndpoints: readonly Endpoint[]
  readonly reachableEndpoints: readonly Endpoint[]
  readonly hasAnyEndpoints: boolean
}

export interface TopologyInput {
  readonly candidates: readonly Candidate[]
  readonly usesClusterEndpoints: boolean
  readonly usesLocalEndpoints: boolean
  readonly nodeName: string
  /** undefined: the node has no zone label, so zone hints cannot be followed (E16). */
  readonly zone: string | undefined
}

/** Which endpoints this node may use, by policy, readiness and hints (E11-E17, S15). */
export function categorizeEndpoints(input: TopologyInput): Categorized {
  const { candidates } = input
  const usable = candidates.map(({ endpoint }) => endpoint).filter(canServe)
  const clusterEndpoints = input.usesClusterEndpoints ? clusterList(input) : []
  const localEndpoints = input.usesLocalEndpoints
    ? readyElseTerminating(usable.filter(({ isLocal }) => isLocal))
    : []
  return {
    clusterEndpoints,
    localEndpoints,
    reachableEndpoints: union(clusterEndpoints, localEndpoints),
    hasAnyEndpoints: usable.length > 0,
  }
}

function clusterList(input: TopologyInput): readonly Endpoint[] {
  const ready = input.candidates.filter(({ endpoint }) => endpoint.ready)
  if (ready.length > 0) return followHints(ready, input).map(({ endpoint }) => endpoint)
  return readyElseTerminating(input.candidates.map(({ endpoint }) => endpoint).filter(canServe))
}

/** E14, E15: a kind of hint counts only when every ready endpoint has it and one names us. */
function followHints(ready: readonly Candidate[], input: TopologyInput): readonly Candidate[] {
  const { nodeName, zone } = input
  if (ready.every(({ nodeHints }) => nodeHints)) {
    const chosen = ready.filter(({ nodeHints }) => nodeHints?.includes(nodeName))
    if (chosen.length > 0) return chosen
  }
  if (zone !== undefined && ready.every(({ zoneHints }) => zoneHints)) {
    const chosen = ready.filter(({ zoneHints }) => zoneHints?.includes(zone))
    if (chosen.length > 0) return chosen
  }
  return ready
}

/** E11: while nobody is ready, those that are shutting down but still answer are better than none. */
function readyElseTerminating(endpoints: readonly Endpoint[]): readonly Endpoint[] {
  const ready = endpoints.filter((endpoint) => endpoint.ready)
  return ready.length > 0 ? ready : endpoints
}

function canServe({ ready, serving, terminating }: Endpoint): boolean {
  return ready || (serving && terminating)
}

function union(a: readonly Endpoint[], b: readonly Endpoint[]): readonly Endpoint[] {
  if (b.length === 0) return a
  if (a.length === 0) return b
  const all = new Map([...a, ...b].map((endpoint) => [endpoint.key, endpoint]))
  return [...all.values()].sort((x, y) => (x.key < y.key ? -1 : 1))
}
