import { sharedHops, verdictOf } from '../inspect/explain/text.js'
import { argumentsOf, canonicalOptions } from '../kernel/iptables.js'
import { placeText, type Item } from '../kernel/place.js'
import { whereText, type Hop, type Way } from '../inspect/explain/packet.js'
import type { HopView, PathView, WayView } from './view.js'

/** Without a way; the note says why. */
export function noPath(note: string): PathView {
  return { shared: [], ways: [], note }
}

/** Ways as the page draws them. */
export function pathView(
  ways: readonly Way[],
  podAt: (ip: string, port: number) => string | undefined,
): PathView {
  const shared = sharedHops(ways)
  return {
    note: '',
    shared: shared.map(hopView),
    ways: ways.map((way): WayView => {
      const pod = way.end === 'sent' ? (podAt(way.packet.destination, way.packet.port) ?? '') : ''
      const isStopped = way.end === 'dropped' || way.end === 'rejected'
      return {
        probability: way.probability,
        verdict: verdictOf(way),
        end: isStopped ? 'stopped' : pod === '' ? 'elsewhere' : 'pod',
        pod,
        isMasqueraded: way.packet.isMasqueraded,
        hops: way.hops.slice(shared.length).map(hopView),
      }
    }),
  }
}

function hopView({ path, item, rule, why }: Hop): HopView {
  return { where: whereText(path), rule, why, counter: item ? counterOf(item) : '' }
}

/**
 * The key of a rule's counter. It is the same for a rule of a plan and for that rule as
 * iptables-save prints it. Ports of the proxy are left out, because the plan does not have them.
 */
export function counterOf({ place, text }: Item): string {
  if (place.table === undefined) return ''
  const options = canonicalOptions(text).filter(({ name }) => !proxyPorts.has(name))
  return [placeText(place), ...argumentsOf(options)].join(' ')
}

/** The counters that a packet moves on its way. Only rules of iptables have one. */
export function countedOn({ hops, idle = [] }: Way): readonly string[] {
  const counters = [...hops, ...idle].map(({ item }) => (item ? counterOf(item) : ''))
  return counters.filter((key) => key !== '')
}

const proxyPorts = new Set(['--to-ports', '--to-destination'])
