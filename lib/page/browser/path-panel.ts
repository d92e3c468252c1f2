import { byId, element, percent, drawIfChanged, shortName } from './element.js'
import type { HopView, PathView, View, WayView } from '../view.js'

/** Shows the way, hop by hop, with a place for the counter of each. */
export function showPath(view: View): void {
  const { path } = view
  drawIfChanged('path', path, () => {
    byId('hops').replaceChildren(...sharedParts(path))
    byId('ways').replaceChildren(...wayParts(path))
  })
}

export function sharedParts({ shared }: PathView): readonly Node[] {
  return shared.map((hop) => element('li', '', ...hopParts(hop)))
}

export function wayParts({ note, ways }: PathView): readonly Node[] {
  return [
    ...(note === '' ? [] : [element('p', 'hint', note)]),
    ...ways.map((way, index) => wayPart(way, index === 0)),
  ]
}

/** Scrolls to the rule that has this number in the picture, and marks it. */
export function showHop(index: number): void {
  const row = byId('hops').children[index]
  if (!(row instanceof HTMLElement)) return
  for (const each of byId('hops').children) each.classList.toggle('asked', each === row)
  row.tabIndex = -1
  row.scrollIntoView({ block: 'center' })
  row.focus({ preventScroll: true })
}

/** Changes only the numbers, because they change all the time. All hops must be drawn before. */
export function showCounters({ counters }: View): void {
  for (const place of document.querySelectorAll<HTMLElement>('.count')) {
    const count = counters.rules[place.dataset['counter'] ?? '']
    const text = count === undefined ? '' : `${count} packet${count === 1 ? '' : 's'}`
    if (place.textContent !== text) place.textContent = text
  }
  const parts = Object.entries(counters.endpoints).map(
    ([endpoint, count]) => `${endpoint}: ${count}`,
  )
  const words = parts.length === 0 ? '' : ` Connections: ${parts.join(', ')}.`
  byId('counters').textContent = `${counters.note}${words}`
}

function hopParts(hop: HopView): readonly Node[] {
  const { where, rule, why, counter } = hop
  const count = element('span', 'count')
  count.dataset['counter'] = counter
  return [
    element('div', 'where', element('span', '', where), count),
    ...(rule === '' ? [] : [element('code', '', rule)]),
    element('p', 'why', why),
  ]
}

function wayPart(way: WayView, isOpen: boolean): Node {
  const name = way.pod === '' ? '' : `${shortName(way.pod)}: `
  const share = element('strong', '', percent(way.probability))
  const title = ` ${name}${way.verdict}`
  if (way.hops.length === 0) return element('p', 'way', share, title)
  const part = element('details', 'way', element('summary', '', share, title))
  part.toggleAttribute('open', isOpen)
  part.append(element('ul', '', ...way.hops.map((hop) => element('li', '', ...hopParts(hop)))))
  return part
}
