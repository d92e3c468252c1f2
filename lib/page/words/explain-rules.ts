import { iptablesWords } from './iptables-words.js'
import { ipvsWords, listenerWords } from './other-words.js'
import { nftablesWords } from './nftables-words.js'
import { fixedOf } from './words.js'
import type { LineWords, Surroundings } from './words.js'
import type { PlanLine } from '../../modes/mode.js'
import type { ModeName } from '../../config/config.js'

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
  const texts = lines.map(({ text }) => text)
  const iptables = iptablesWords(mode, texts, around)
  if (mode === 'iptables') return ({ text }) => iptables(text)
  if (mode === 'userspace') return ({ text }) => iptables(text) ?? listenerWords(text, around)
  const ipvs = ipvsWords(texts, around)
  // ipvsadm and iptables both begin lines with -A; the first says more after it.
  return ({ text }) => ipvs(text) ?? iptables(text)
}
