import type { FamilyPlan, PlanLine, PlanReader } from '../modes/mode.js'
import { isProxyMode, type ModeName } from '../config/config.js'
import type { RuleLine } from './view.js'
import { type Surroundings, fixedOf, type LineWords } from './words/words.js'
import { iptablesWords } from './words/iptables-words.js'
import { ipvsWords, listenerWords, socketWords } from './words/other-words.js'
import { nftablesWords } from './words/nftables-words.js'

/** The lines that these service ports add to a plan without Services. */
export function ownLines(
  reader: PlanReader,
  plan: FamilyPlan,
  keys: readonly string[],
): readonly PlanLine[] {
  const without = new Set(linesOf(reader, reader.only(plan, [])).map(({ text }) => text))
  const lines = linesOf(reader, reader.only(plan, keys))
  return lines.filter(({ text }) => text !== '' && !without.has(text))
}

export function linesOf(reader: PlanReader, plan: FamilyPlan): readonly PlanLine[] {
  const plain = () => reader.render(plan).split('\n')
  return reader.lines?.(plan) ?? plain().map((text) => ({ text }))
}

interface RulesToShow {
  readonly mode: ModeName
  /** Identifies what the rules are for. Only rules with the same value are compared. */
  readonly of: string
  readonly lines: readonly PlanLine[]
  readonly around: Surroundings
  /** Other input of the words, besides the lines. */
  readonly known?: string
  /** False while the cluster is being built; then no line counts as changed. */
  readonly isSettled?: boolean
}

/** Rules in words. Lines that were added or removed since the last time are marked. */
export class RuleLines {
  #before: RulesToShow | undefined
  #lines: readonly RuleLine[] = []

  get lines(): readonly RuleLine[] {
    return this.#lines
  }

  /** Whether there is anything new to show. */
  show(next: RulesToShow): boolean {
    const before = this.#before?.of === next.of ? this.#before : undefined
    const texts = (lines: readonly PlanLine[]) => lines.map(({ text }) => text).join('\n')
    const isSame = before?.known === next.known && texts(before?.lines ?? []) === texts(next.lines)
    if (before && isSame) return false
    this.#before = next
    const { mode, lines, around, isSettled = true } = next
    const changed = changedLines((isSettled && before?.lines) || lines, lines)
    const words = explainRules(
      mode,
      changed.map(({ line }) => line),
      around,
    )
    this.#lines = changed.map(({ line: { text }, change }, index) => ({
      ...{ text, change },
      ...{ words: words[index]?.words ?? '', object: words[index]?.object ?? '' },
    }))
    return true
  }
}

interface ChangedLine {
  readonly line: PlanLine
  readonly change: RuleLine['change']
}

/**
 * The lines of `next`, with a mark on those that `previous` lacks. Removed lines stay at their old
 * place. Rules are unique within a set, so each line is compared by itself.
 */
function changedLines(previous: readonly PlanLine[], next: readonly PlanLine[]): ChangedLine[] {
  const before = new Map(previous.map(({ text }, index) => [text, index]))
  const now = new Set(next.map(({ text }) => text))
  const lines: ChangedLine[] = []
  let seen = 0
  const passRemoved = (until: number) => {
    for (const line of previous.slice(seen, until)) {
      if (!now.has(line.text)) lines.push({ line, change: 'removed' })
    }
    seen = Math.max(seen, until)
  }
  for (const line of next) {
    const index = before.get(line.text)
    if (index !== undefined) passRemoved(index)
    lines.push({ line, change: index === undefined ? 'added' : 'same' })
  }
  passRemoved(previous.length)
  return lines
}

/** Words for every line of a plan; `undefined` where there are none. Pure. */
export function explainRules(
  mode: ModeName,
  lines: readonly PlanLine[],
  around: Surroundings,
): readonly (LineWords | undefined)[] {
  const explain = explainerOf(mode, lines, around)
  return lines.map((line) =>
    line.text.startsWith('# ')
      ? { words: `the next lines are for: ${line.text.slice(2)}`, object: fixedOf(mode) }
      : explain(line),
  )
}

function explainerOf(
  mode: ModeName,
  lines: readonly PlanLine[],
  around: Surroundings,
): (line: PlanLine) => LineWords | undefined {
  if (mode === 'nftables') return nftablesWords(around)
  if (mode === 'ebpf') {
    const packets = nftablesWords(around)
    return (line) => socketWords(line.text) ?? packets(line)
  }
  const texts = lines.map(({ text }) => text)
  const iptables = iptablesWords(mode, texts, around)
  if (mode === 'iptables') return ({ text }) => iptables(text)
  if (isProxyMode(mode)) return ({ text }) => iptables(text) ?? listenerWords(text, around)
  const ipvs = ipvsWords(texts, around)
  // ipvsadm and iptables both begin lines with -A. The pattern for ipvsadm is the narrow one.
  return ({ text }) => ipvs(text) ?? iptables(text)
}
