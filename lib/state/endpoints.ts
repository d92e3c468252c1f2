import { weightOf, type Weights } from './balance.js'
import { hostPort } from './ip.js'
import { withoutFailing, type HealthView } from './endpoint-health.js'
import type { Endpoint } from './desired-state.js'
import type { EndpointSliceObject } from './objects.js'
import type { Protocol } from './names.js'

/** An endpoint with the hints that decide whether this node uses it. */
export interface Candidate {
  readonly endpoint: Endpoint
  readonly zoneHints: readonly string[] | undefined
  readonly nodeHints: readonly string[] | undefined
}

/**
 * All endpoints of one service port, from every slice of its Service: merged, without
 * duplicates, sorted (E07, E08). The slices must be of one family. Of equal records of one endpoint
 * the first counts.
 */
export function collectCandidates(
  slices: Iterable<EndpointSliceObject>,
  port: { readonly name: string; readonly protocol: Protocol },
  { nodeName, weights }: { readonly nodeName: string; readonly weights: Weights | undefined },
): readonly Candidate[] {
  const byKey = new Map<string, Candidate>()
  for (const slice of slices) {
    for (const slicePort of slice.ports) {
      if (slicePort.name !== port.name || slicePort.protocol !== port.protocol) continue
      for (const each of slice.endpoints) {
        const { ip, podName } = each
        const key = hostPort(ip, slicePort.port)
        const isLocal = each.nodeName === nodeName
        // An endpoint that moves between slices is in both for a moment.
        const other = byKey.get(key)
        if (other && usefulness({ ...each, isLocal }) <= usefulness(other.endpoint)) continue
        // Every field by name: a spread would need half as much memory again for each endpoint.
        const endpoint = {
          ip,
          port: slicePort.port,
          key,
          isLocal,
          ready: each.ready,
          serving: each.serving,
          terminating: each.terminating,
          weight: (weights && weightOf(weights, { ip, podName })) ?? each.weight,
        }
        byKey.set(key, { endpoint, zoneHints: each.zoneHints, nodeHints: each.nodeHints })
      }
    }
  }
  return [...byKey.values()].sort((a, b) => (a.endpoint.key < b.endpoint.key ? -1 : 1))
}

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
  /** undefined: the node has no zone label, so zone hints are ignored (E16). */
  readonly zone: string | undefined
  /** undefined: nothing is checked. */
  readonly health?: HealthView | undefined
}

/** The endpoints that this node uses, by policy, readiness, health and hints (E11-E17, S15). */
export function categorizeEndpoints(input: TopologyInput): Categorized {
  const { health } = input
  const serving = input.candidates.filter(({ endpoint }) => canServe(endpoint))
  const usable = withoutFailing(serving, health)
  const clusterEndpoints = input.usesClusterEndpoints ? clusterList(usable, input).map(only) : []
  // Each list keeps its own last endpoints when all of them fail, so the local list is filtered alone.
  const local = serving.filter(({ endpoint }) => endpoint.isLocal)
  const localEndpoints = input.usesLocalEndpoints
    ? readyElseTerminating(withoutFailing(local, health)).map(only)
    : []
  return {
    clusterEndpoints,
    localEndpoints,
    reachableEndpoints: union(clusterEndpoints, localEndpoints),
    hasAnyEndpoints: usable.length > 0,
  }
}

export const only = ({ endpoint }: Pick<Candidate, 'endpoint'>) => endpoint

function clusterList(usable: readonly Candidate[], input: TopologyInput): readonly Candidate[] {
  const chosen = readyElseTerminating(usable)
  return chosen[0]?.endpoint.ready ? followHints(chosen, input) : chosen
}

/** E14, E15: hints count only when every ready endpoint has them and one names this node or zone. */
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

/** Of two records of one endpoint the more useful one counts, or else the one on this node. */
function usefulness({
  ready,
  serving,
  terminating,
  isLocal,
}: Pick<Endpoint, 'ready' | 'serving' | 'terminating' | 'isLocal'>): number {
  return (ready ? 3 : terminating ? Number(serving) : 2) + (isLocal ? 0.5 : 0)
}

/** E11: while no endpoint is ready, terminating ones that still serve are used. */
function readyElseTerminating(candidates: readonly Candidate[]): readonly Candidate[] {
  const ready = candidates.filter(({ endpoint }) => endpoint.ready)
  return ready.length > 0 ? ready : candidates
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
