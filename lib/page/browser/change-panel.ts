import { byId, element, drawIfChanged } from './element.js'
import { choices, named } from './controls.js'
import type { RuleLine, View, TimelineStep } from '../view.js'

/** The last change: what it did to the rules, and when each part did its work. */

const marks = { same: '  ', added: '+ ', removed: '− ' } as const
const changeWords = { same: '', added: 'new: ', removed: 'gone: ' } as const

/** Every line of the rules, in words and with the object that made it. */
export function showRules(view: View): void {
  const { rules } = view
  choices('rules-modes', named(rules.modes), rules.mode, (mode) => ({ do: 'rules', mode }))
  drawIfChanged('rules', rules, () => {
    byId('change').textContent = changeOf(rules)
    byId('rules').replaceChildren(...rules.lines.map(ruleRow))
  })
}

function changeOf({ lines, mode, lastChange }: View['rules']): string {
  const count = (change: RuleLine['change']) =>
    lines.filter((line) => line.change === change).length
  const [added, removed] = [count('added'), count('removed')]
  const left = lines.length - removed
  const sum = `${left} line${left === 1 ? '' : 's'} in ${mode} mode.`
  const because = lastChange === '' ? '' : ` (${lastChange.split('\n')[0] ?? ''})`
  if (added + removed === 0) return sum
  return `${sum} The last change${because} added ${added} and removed ${removed}.`
}

function ruleRow({ text, change, words, object }: RuleLine): Node {
  return element(
    'li',
    change,
    element('code', '', marks[change] + text),
    element('p', 'why', changeWords[change] + words),
    element('p', 'object', `because of ${object}`),
  )
}

/** When each part did its work, drawn to scale. */
export function showTimeline({ timeline, isReadOnly }: View): void {
  byId('timeline-card').hidden = isReadOnly && timeline === null
  drawIfChanged('timeline', timeline, () => {
    byId('timeline-title').textContent = timeline?.title ?? ''
    byId('timeline-note').textContent =
      timeline?.note ?? 'Terminate a pod or add a replica, and see how long each part takes.'
    const whole = timeline?.steps.at(-1)?.atMs ?? 0
    const steps = timeline?.steps ?? []
    byId('timeline').replaceChildren(
      ...steps.map((step, index) => stepRow(step, steps[index - 1]?.atMs ?? 0, whole)),
    )
  })
}

function stepRow({ name, what, atMs }: TimelineStep, before: number, whole: number): Node {
  const scale = whole === 0 ? 0 : 100 / whole
  const bar = element('span', 'span')
  // Set in the object model, because a style attribute needs a weaker content security policy.
  bar.style.marginLeft = `${before * scale}%`
  bar.style.width = `max(3px, ${(atMs - before) * scale}%)`
  const label = element('span', 'step', name)
  const spent = atMs - before
  const time = element('span', 'ms', `${atMs.toFixed(1)} ms`)
  time.title = `${spent.toFixed(1)} ms after the step before`
  return element('li', '', label, element('span', 'track', bar), time, element('p', 'why', what))
}
