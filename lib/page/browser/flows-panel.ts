import {
  button,
  byId,
  element,
  drawIfChanged,
  keyed,
  updateChildren,
  shortName,
} from './element.js'
import { choices, send } from './controls.js'
import type { FlowChoice, FlowView, StreamView, View } from '../view.js'

const verdicts = [
  ['', 'all'],
  ['forwarded', 'forwarded'],
  ['refused', 'refused'],
  ['dropped', 'dropped'],
  ['no-endpoints', 'no endpoints'],
] as const satisfies readonly (readonly [FlowChoice['verdict'], string])[]

/**
 * Lines never change, so each has one row for as long as it is shown. Another proxy gives the same keys to
 * other lines.
 */
const rows = new Map<FlowView, HTMLElement>()
let shown: readonly FlowView[] | undefined
let isHeld = false
let chosen: FlowChoice = { service: '', from: '', verdict: '' }

/** Shows the stream of connections. Only new lines are drawn. */
export function showFlows({ flows, stream }: View): void {
  byId('flows-card').hidden = stream === null
  if (!stream) return
  drawIfChanged('stream', stream, () => showStream(stream))
  if (flows === shown || isHeld) return
  shown = flows
  byId('flows-none').hidden = stream.note !== '' || flows.length > 0
  showRows(flows)
}

/** Called once; `latest` gives the view at the time of a click. */
export function connectFlows(latest: () => View | undefined): void {
  byId('flows-hold').addEventListener('click', () => {
    hold(!isHeld)
    const view = latest()
    if (view) showFlows(view)
  })
}

/** Keeps the rows where they are, because moving rows are hard to read and to click. */
function hold(on: boolean): void {
  isHeld = on
  byId('flows-hold').setAttribute('aria-pressed', String(on))
}

function choose(change: Partial<FlowChoice>): void {
  void send({ do: 'flows', ...chosen, ...change })
}

function showStream({ note, leftOut, service, from, verdict }: StreamView): void {
  const isSame = service === chosen.service && from === chosen.from && verdict === chosen.verdict
  // A new filter ends the hold, so that the reader sees its lines.
  if (!isSame) hold(false)
  chosen = { service, from, verdict }
  for (const id of ['flows-shown', 'flows-hold']) byId(id).hidden = note !== ''
  byId('flows-note').textContent = note
  byId('flows-left-out').textContent =
    leftOut === 0
      ? ''
      : `${leftOut} ${leftOut === 1 ? 'line was' : 'lines were'} left out under load`
  choices('flows-verdicts', verdicts, verdict, (wanted) => ({
    do: 'flows',
    ...chosen,
    verdict: wanted,
  }))
  updateChildren(
    byId('flows-chosen'),
    ...chip('service', service, () => choose({ service: '' })),
    ...chip('from', from, () => choose({ from: '' })),
  )
}

/** A button that removes one part of the filter. */
function chip(key: string, value: string, act: () => void): readonly Node[] {
  return value === '' ? [] : [keyed(key, filtering(`${value} ×`, `not only ${value}`, act))]
}

function showRows(flows: readonly FlowView[]): void {
  const place = byId('flows')
  const kept = new Set(flows)
  for (const [flow, row] of rows) {
    if (kept.has(flow)) continue
    row.remove()
    rows.delete(flow)
  }
  flows.forEach((flow, index) => {
    const row = rows.get(flow) ?? rowOf(flow)
    rows.set(flow, row)
    const there = place.children[index] ?? null
    if (row !== there) place.insertBefore(row, there)
  })
}

function rowOf(flow: FlowView): HTMLElement {
  const { time, client, clientPod, from, service, protocol, verdict, details } = flow
  const { endpoint, endpointPod } = flow
  const when = element('td', '', time.slice(11, 23))
  when.title = time
  const asked = protocol === 'TCP' ? service : `${service}/${protocol}`
  return element(
    'tr',
    '',
    when,
    // The verdict comes before the long columns, because a phone shows only the first ones.
    element('td', verdict === 'forwarded' ? 'kept' : 'lost', verdict),
    element('td', '', from === '' ? '–' : named(client, clientPod, () => choose({ from }))),
    element(
      'td',
      '',
      filtering(asked, `only to ${service}`, () => choose({ service })),
    ),
    titled(element('td', '', endpoint === '' ? '–' : nameOf(endpoint, endpointPod)), endpoint),
    element('td', '', details),
  )
}

const nameOf = (place: string, pod: string) => (pod === '' ? place : shortName(pod))

function named(place: string, pod: string, act: () => void): HTMLElement {
  const words = nameOf(place, pod)
  return titled(filtering(words, `only from ${words}`, act), place)
}

function filtering(words: string, label: string, act: () => void): HTMLElement {
  const made = button(words, act, label)
  made.className = 'small'
  return made
}

function titled(made: HTMLElement, title: string): HTMLElement {
  made.title = title
  return made
}
