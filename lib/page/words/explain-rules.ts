import { iptablesWords } from './iptables-words.js'
import { ipvsWords, listenerWords } from './other-words.js'
import { nftablesWords } from './nftables-words.js'
import { fixedOf } from './words.js'
import type { LineWords, Surroundings } from './words.js'
import type { ModeName } from '../../modes/registry.js'

/** Words for every line that `render` prints in a mode; `undefined` where there are none. Pure. */
export function explainRules(
  mode: ModeName,
  lines: readonly string[],
  around: Surroundings,
): readonly (LineWords | undefined)[] {
  const explain = explainerOf(mode, lines, around)
  return lines.map((line) =>
    line.startsWith('# ')
      ? { words: `what follows is for: ${line.slice(2)}`, object: fixedOf(mode) }
      : explain(line),
  )
}

function explainerOf(
  mode: ModeName,
  lines: readonly string[],
  around: Surroundings,
): (line: string) => LineWords | undefined {
  if (mode === 'nftables') return nftablesWords(around)
  const iptables = iptablesWords(mode, lines, around)
  if (mode === 'iptables') return iptables
  if (mode === 'userspace') return (line) => iptables(line) ?? listenerWords(line, around)
  const ipvs = ipvsWords(lines, around)
  // ipvsadm and iptables both begin lines with -A; the first says more after it.
  return (line) => ipvs(line) ?? iptables(line)
}
