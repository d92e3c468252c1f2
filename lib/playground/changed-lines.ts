import type { RuleLine } from './view.js'

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
