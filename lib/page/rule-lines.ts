import { PersistentMap } from '../state/persistent-map.js'
import type { DesiredService, DesiredState } from '../state/desired-state.js'
import type { Planner } from '../modes/mode.js'
import type { RuleLine } from './view.js'

/** What a planner makes of the Services of a state, beyond what it makes without any. */
export function ownLines(planner: Planner, state: DesiredState): readonly string[] {
  const linesWith = (services: DesiredState['services']) =>
    planner.render(planner.plan({ ...state, services })).split('\n')
  const without = new Set(linesWith(PersistentMap.empty<DesiredService>()))
  return linesWith(state.services).filter((line) => line !== '' && !without.has(line))
}

export type ChangedLine = Pick<RuleLine, 'text' | 'change'>

/**
 * The lines of `next`, those that `previous` lacks marked, and where they stood the lines that
 * went. Rules are unique within a set, so each line is compared by itself.
 */
export function changedLines(previous: readonly string[], next: readonly string[]): ChangedLine[] {
  const before = new Set(previous)
  const now = new Set(next)
  const lines: ChangedLine[] = []
  let seen = 0
  const passRemoved = (until: number) => {
    for (const text of previous.slice(seen, until)) {
      if (!now.has(text)) lines.push({ text, change: 'removed' })
    }
    seen = Math.max(seen, until)
  }
  for (const text of next) {
    if (before.has(text)) passRemoved(previous.indexOf(text))
    lines.push({ text, change: before.has(text) ? 'same' : 'added' })
  }
  passRemoved(previous.length)
  return lines
}
