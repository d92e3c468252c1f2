import { byId, element, drawIfChanged, shortName } from './element.js'
import { chapters } from './chapters.js'
import { choices, named, send } from './controls.js'
import { sharedParts, wayParts } from './path-panel.js'
import type { SideView, View } from '../view.js'

/** The modes that are compared; empty while none are. */
export function comparedIn({ comparison }: View): readonly string[] {
  return comparison.map(({ mode }) => mode)
}

/** The same request in two modes, and the story of the modes. */
export function showComparison(view: View): void {
  const { comparison, rules } = view
  const [left = '', right = ''] = comparedIn(view)
  const names = named(rules.modes)
  choices('compare-left', names, left, (mode) => compare(mode, beside(mode, 'left', 'right')))
  choices('compare-right', names, right, (mode) => compare(beside(mode, 'right', 'left'), mode))
  const chapter = chapters.findIndex(({ modes }) => modes.join() === `${left},${right}`)
  const titles = chapters.map(({ title }, index) => [String(index), title] as const)
  choices('chapters', titles, String(chapter), (index) => {
    const { modes } = chapters[Number(index)] ?? {}
    return modes && compare(...modes)
  })
  byId('chapter').textContent =
    comparison.length === 0
      ? 'The request above in two modes, hop by hop: what each costs, and what it shows. Begin with a chapter of the story.'
      : (chapters[chapter]?.words ?? '')
  byId('compared').hidden = comparison.length === 0
  byId('compare-end').hidden = comparison.length === 0
  drawIfChanged('costs', [comparison, view.log[0] ?? null], () => showCosts(view))
  drawIfChanged('sides', comparison, () =>
    byId('sides').replaceChildren(...comparison.map(sidePart)),
  )
}

/** Called once; `latest` gives the view at the time of a click. */
export function connectComparison(latest: () => View | undefined): void {
  byId('compare-end').addEventListener('click', () => {
    void send({ do: 'compare', modes: [] })
    // The button disappears, so the focus moves to a chapter.
    byId('chapters').querySelector('button')?.focus()
  })
  let isSending = false
  byId('compare-send').addEventListener('click', () => {
    const view = latest()
    if (!view || isSending) return
    isSending = true
    void sendInBoth(view).finally(() => (isSending = false))
  })
}

function compare(...modes: readonly string[]) {
  return { do: 'compare', modes } as const
}

/** One request in each of the two modes that can run here; the page stays in the last one. */
async function sendInBoth(view: View): Promise<void> {
  let { mode: running } = view
  for (const mode of comparedIn(view).filter((each) => view.modes.includes(each))) {
    if (mode !== running && !(await send({ do: 'mode', mode }))) return
    running = mode
    if (!(await send({ do: 'send', count: 1 }))) return
  }
}

/** The mode for the other side. Choosing the mode of the other side swaps both. */
function beside(mode: string, own: 'left' | 'right', other: 'left' | 'right'): string {
  const pressed = (side: string) =>
    byId(`compare-${side}`).querySelector<HTMLElement>('[aria-pressed=true]')?.dataset['value'] ??
    ''
  return pressed(other) === mode ? pressed(own) : pressed(other)
}

/** A line for each cost, and a column for each mode. */
function showCosts(view: View): void {
  const { comparison, modes } = view
  const head = element(
    'tr',
    '',
    element('td'),
    ...comparison.map(({ mode }) => heading('col', mode)),
  )
  // A side without a way has no costs.
  const all = comparison.find(({ costs }) => costs.length > 0)?.costs ?? []
  const lines = all.map(({ name }) =>
    line(
      name,
      comparison.map(({ costs }) => valueOf(costs, name)),
    ),
  )
  const latest = comparison.map(({ mode }) => latestIn(mode, view, modes.includes(mode)))
  byId('costs').replaceChildren(
    element('caption', 'unseen', 'What a request costs and shows in each mode'),
    element('thead', '', head),
    element('tbody', '', ...lines, line('the latest request', latest)),
  )
}

function heading(scope: 'col' | 'row', words: string): HTMLElement {
  const made = element('th', '', words)
  made.setAttribute('scope', scope)
  return made
}

function line(name: string, values: readonly string[]): HTMLElement {
  return element('tr', '', heading('row', name), ...values.map((value) => element('td', '', value)))
}

function valueOf(costs: SideView['costs'], name: string): string {
  return costs.find((cost) => cost.name === name)?.value ?? '–'
}

/** The result of the latest request in this mode from the same sender to the same target. */
function latestIn(mode: string, { log, sender, target }: View, canRun: boolean): string {
  const entry = log.find(
    (each) => each.mode === mode && each.sender === sender && each.target === target.address,
  )
  if (!entry) return canRun ? 'none yet' : 'none: this mode cannot run here'
  const { answer, isAnswered, source, isSourceKept, milliseconds } = entry
  const took = milliseconds === null ? '' : `, after ${milliseconds} ms`
  if (!isAnswered) return `${answer}${took}`
  return `${shortName(answer)} answered${took}; it saw ${source}, ${isSourceKept ? 'the sender' : 'the node'}`
}

function sidePart({ mode, isRunning, path }: SideView): Node {
  const state = isRunning ? 'runs now' : 'as it would be'
  const hops = element('ol', 'hops', ...sharedParts(path))
  const part = element(
    'div',
    'side',
    element('h3', `in ${mode}`, mode, ' ', element('span', 'soft', state)),
    ...(path.shared.length === 0 ? [] : [hops]),
    ...wayParts(path),
  )
  part.setAttribute('role', 'group')
  part.setAttribute('aria-label', `The way in ${mode} mode`)
  return part
}
