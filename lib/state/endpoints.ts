import { hostPort } from './ip.js'
import type { Endpoint } from './desired-state.js'
import type { EndpointSliceObject } from './objects.js'
import type { Protocol } from './names.js'

/** An endpoint together with the hints that decide whether this node may use it. */
export interface Candidate {
  readonly endpoint: Endpoint
  readonly zoneHints: readonly string[] | undefined
  readonly nodeHints: readonly string[] | undefined
}

/**
 * All endpoints of one service port, from every slice of its Service: merged, without
 * duplicates, sorted (E07, E08). Slices of the other family must have been left out.
 */
export function collectCandidates(
  slices: Iterable<EndpointSliceObject>,
  port: { readonly name: string; readonly protocol: Protocol },
  nodeName: string,
): readonly Candidate[] {
  const byKey = new Map<string, Candidate>()
  for (const slice of slices) {
    for (const slicePort of slice.ports) {
      if (slicePort.name !== port.name || slicePort.protocol !== port.protocol) continue
      for (const { ip, nodeName: onNode, zoneHints, nodeHints, ...rest } of slice.endpoints) {
        const key = hostPort(ip, slicePort.port)
        // A pod that moves between slices is in both for a moment; the one that stays wins.
        if (byKey.has(key) && rest.terminating) continue
        const isLocal = onNode === nodeName
        const endpoint = { ip, port: slicePort.port, key, isLocal, ...rest }
        byKey.set(key, { endpoint, zoneHints, nodeHints })
      }
    }
  }
  return [...byKey.values()].sort((a, b) => (a.endpoint.key < b.endpoint.key ? -1 : 1))
}
