import type { ModeName } from '../../lib/config/config.js'
import { playsIn, targetOf, type Fault, type FaultGroup, type Loss, type Target } from './fault.js'

/** The tables of docs/reliability.md say exactly what `npm run chaos` checks. */

export const chaosModes: readonly ModeName[] = ['nftables', 'iptables', 'ipvs', 'userspace', 'ebpf']

const words: Readonly<Record<Loss, { fresh: string; open: string }>> = {
  nothing: { fresh: 'all succeed', open: 'go on' },
  'until repaired': { fresh: 'may fail until then', open: 'may end' },
}

const textOf = ({ fresh, open, seconds }: Target) =>
  `${words[fresh].fresh} | ${words[open].open} | ${seconds} s`

/** One row for the modes that promise the same. */
function rowsOf(fault: Fault): readonly string[] {
  const byText = new Map<string, ModeName[]>()
  for (const mode of chaosModes.filter((each) => playsIn(fault, each))) {
    const text = textOf(targetOf(fault, mode))
    byText.set(text, [...(byText.get(text) ?? []), mode])
  }
  return [...byText].map(([text, modes]) => {
    const named = modes.length === chaosModes.length ? 'all' : modes.join(', ')
    return `| ${fault.name} | ${named} | ${text} |`
  })
}

/** The text of docs/reliability.md with the present promises. */
export function withPromises(text: string, groups: readonly FaultGroup[]): string {
  const head =
    '| fault | modes | new connections | open connections | works again within |\n|---|---|---|---|---|'
  const tables = groups.map(
    ({ title, faults }) => `### ${title}\n\n${head}\n${faults.flatMap(rowsOf).join('\n')}\n`,
  )
  const marks = /(<!-- promises[^>]*-->\n)[^]*?(<!-- \/promises -->)/
  if (!marks.test(text)) throw new Error('docs/reliability.md has no place for its promises')
  return text.replace(
    marks,
    (_, start: string, end: string) => `${start}${tables.join('\n')}${end}`,
  )
}
