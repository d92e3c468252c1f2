import { sourceBucket } from '../../kernel/jenkins-hash.js'
import { elementText, setPlace } from '../../modes/nftables/differences.js'
import type { DnatTarget, Draw, Element } from '../../kernel/nftables/model.js'
import type { Item } from '../../kernel/place.js'
import type { Packet } from './packet.js'

/** What a rule of nftables may draw for a packet, and how likely. */
interface Drawn<T> {
  readonly of: T
  /** The share of the connections that get it. */
  readonly share: number
  /** How it is chosen, in words. */
  readonly how: string
}

/**
 * What the packet may draw from a list. An entry that the list holds several times comes once, with
 * a larger share.
 */
export function drawn<T extends object>(
  all: readonly T[],
  by: Draw = 'chance',
  { source }: Pick<Packet, 'source'>,
): readonly Drawn<T>[] {
  if (by === 'source' && all.length > 1) {
    const of = all[sourceBucket(source, all.length)]
    return of ? [{ of, share: 1, how: 'by the address of the client' }] : []
  }
  const times = new Map<string, { readonly of: T; count: number }>()
  for (const of of all) {
    const text = JSON.stringify(of)
    const known = times.get(text)
    if (known) known.count++
    else times.set(text, { of, count: 1 })
  }
  const isEven = times.size === all.length
  const chosen = amongEndpoints(times.size, by === 'turn' ? 'in turn' : 'by chance')
  return Array.from(times.values(), ({ of, count }) => ({
    of,
    share: count / all.length,
    how: isEven ? chosen : `${chosen}, ${count} of ${all.length} times`,
  }))
}

export function amongEndpoints(count: number, way: string): string {
  return count === 1 ? 'the only endpoint here' : `one of ${count} endpoints ${way}`
}

/** A target, and the rule or element that names it. */
export interface ChosenTarget {
  readonly target: DnatTarget
  readonly item: Item
  readonly rule: string
  /** The share of the connections that go to it. */
  readonly share: number
  readonly how: string
}

export function elementAt(element: Element): { readonly item: Item; readonly rule: string } {
  const text = elementText(element)
  const rule = `element ${element.set.name} { ${text} }`
  return { item: { place: setPlace(element.set), text }, rule }
}
