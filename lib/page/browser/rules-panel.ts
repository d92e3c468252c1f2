import { byId, element, drawIfChanged } from './element.js'
import { choices } from './controls.js'
import type { RuleLine, View } from '../view.js'

const marks = { same: '  ', added: '+ ', removed: '− ' } as const
const changeWords = { same: '', added: 'new: ', removed: 'gone: ' } as const

/** Every line of the rules, in words and with the object that made it. */
export function showRules(view: View): void {
  const { rules } = view
  const names = rules.modes.map((name) => [name, name] as const)
  choices('rules-modes', names, rules.mode, (mode) => ({ do: 'rules', mode }))
  drawIfChanged('rules', rules, () => {
    byId('change').textContent = changeOf(rules)
    byId('rules').replaceChildren(...rules.lines.map(ruleRow))
  })
}

function changeOf({ lines, mode, lastChange }: View['rules']): string {
  const count = (change: RuleLine['change']) =>
    lines.filter((line) => line.change === change).length
  const [added, removed] = [count('added'), count('removed')]
  const sum = `${lines.length - removed} lines in ${mode} mode.`
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
