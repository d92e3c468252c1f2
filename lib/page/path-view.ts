import { sharedHops, verdictOf } from '../inspect/explain/text.js'
import type { Way } from '../inspect/explain/packet.js'
import type { HopView, PathView, WayView } from './view.js'

/** Ways as the page draws them. */
export function pathView(
  ways: readonly Way[],
  podAt: (ip: string, port: number) => string | undefined,
): PathView {
  const shared = sharedHops(ways)
  return {
    note: '',
    shared: shared.map(plainHop),
    ways: ways.map((way): WayView => {
      const pod = way.end === 'sent' ? (podAt(way.packet.destination, way.packet.port) ?? '') : ''
      const isStopped = way.end === 'dropped' || way.end === 'rejected'
      return {
        probability: way.probability,
        verdict: verdictOf(way),
        end: isStopped ? 'stopped' : pod === '' ? 'elsewhere' : 'pod',
        pod,
        isMasqueraded: way.packet.isMasqueraded,
        hops: way.hops.slice(shared.length).map(plainHop),
      }
    }),
  }
}

/** Without what only the walk needs. */
function plainHop({ where, rule, why }: HopView): HopView {
  return { where, rule, why }
}
