import { placeId, placeText, type Place } from '../kernel/place.js'
import { counted, printable } from '../state/names.js'
import type { Difference } from '../modes/difference.js'
import type { IpFamily } from '../state/ip.js'
import type { ModeName } from '../config/config.js'

export interface FamilyDifferences {
  readonly family: IpFamily
  /** Service ports that were compared. */
  readonly services: number
  readonly differences: readonly Difference[]
}

/**
 * What a second look found, without what the first did not find. What a place has too much of at
 * both looks is a difference, although the plan may have changed: then it lacks something else.
 */
export function lastingDifferences(
  first: readonly Difference[],
  second: readonly Difference[],
): readonly Difference[] {
  const idOf = (place: Place, text: string) => JSON.stringify([placeId(place), text])
  const idsOf = (part: 'expected' | 'found') =>
    new Set(
      first.flatMap(({ place, [part]: text }) => (text === undefined ? [] : [idOf(place, text)])),
    )
  const [missing, extra] = [idsOf('expected'), idsOf('found')]
  const isIn = (ids: ReadonlySet<string>, place: Place, text: string | undefined) =>
    text !== undefined && ids.has(idOf(place, text))
  const isStale = ({ place, found }: Difference) => isIn(extra, place, found)
  const staleOwners = new Set(
    second
      .filter((each) => each.owner !== '' && isStale(each))
      .map(({ place, owner }) => idOf(place, owner)),
  )
  return second.filter(
    (each) =>
      isIn(missing, each.place, each.expected) ||
      isStale(each) ||
      isIn(staleOwners, each.place, each.owner),
  )
}

/**
 * Text for people, place by place: `-` is missing in the kernel, `+` is in the kernel and should
 * not be.
 */
export function differencesText(mode: ModeName, families: readonly FamilyDifferences[]): string {
  const lines: string[] = []
  for (const { family, services, differences } of families) {
    const head = `${family}, ${mode} mode, ${counted(services, 'service port')}`
    if (differences.length === 0) {
      lines.push(`${head}: the kernel holds what it should.`)
      continue
    }
    lines.push(`${head}: ${counted(differences.length, 'difference')}.`)
    for (const group of byPlace(differences)) {
      const [{ place }] = group
      const owners = [...new Set(group.map(({ owner }) => owner))].filter((owner) => owner !== '')
      const belongs = owners.length === 0 ? '' : ` (${owners.join(', ')})`
      lines.push('', `${placeText(place)}${belongs}`)
      if (place.kind === 'table' && group[0].isWhole) lines.push(`  ${noTable}`)
      for (const { expected, found } of group) {
        for (const line of textLines(expected)) lines.push(`  - ${line}`)
        for (const line of textLines(found)) lines.push(`  + ${line}`)
      }
    }
    lines.push('')
  }
  if (families.some(({ differences }) => differences.length > 0)) lines.push(legend)
  return `${lines.join('\n')}\n`
}

const noTable = 'No proxy in this mode has written it, or it was deleted.'

const legend =
  '- is missing; + should not be there. A running proxy repairs this by itself within a sync period; if not, its log says why.'

type AtPlace = readonly [Difference, ...Difference[]]

function byPlace(differences: readonly Difference[]): Iterable<AtPlace> {
  const places = new Map<string, AtPlace>()
  for (const each of differences) {
    const id = placeId(each.place)
    const before = places.get(id)
    places.set(id, before ? [...before, each] : [each])
  }
  return places.values()
}

/** The differences as plain data, for programs. */
export function differencesJson(mode: ModeName, families: readonly FamilyDifferences[]): unknown {
  return {
    mode,
    families: families.map(({ differences, ...family }) => ({
      ...family,
      differences: differences.map(({ place, expected, found, owner }) => ({
        ...{ where: placeText(place), expected, found, owner },
      })),
    })),
  }
}

/** Any program may have written the text in the kernel, so it is made printable. */
const textLines = (text: string | undefined) =>
  text === undefined ? [] : text.split('\n').map(printable)
