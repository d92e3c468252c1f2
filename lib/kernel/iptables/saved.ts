import { tables } from './batch.js'
import type { Table } from './batch.js'

export interface SavedChain {
  readonly name: string
  /** `-` for a chain that is not built in. */
  readonly policy: string
  /** Each rule as iptables-save prints it, without `-A CHAIN`. */
  readonly rules: readonly string[]
}

/** One table, as iptables-save prints it. */
export interface SavedTable {
  readonly table: Table
  readonly chains: ReadonlyMap<string, SavedChain>
}

/** Reads the output of iptables-save. Lines it does not know are skipped, they are comments. */
export function parseSaved(text: string): SavedTable[] {
  const saved: SavedTable[] = []
  let chains = new Map<string, { name: string; policy: string; rules: string[] }>()
  for (const line of text.split('\n')) {
    if (line.startsWith('-A ')) {
      const end = line.indexOf(' ', 3)
      const name = line.slice(3, end < 0 ? undefined : end)
      chains.get(name)?.rules.push(end < 0 ? '' : line.slice(end + 1))
    } else if (line.startsWith(':')) {
      const [name = '', policy = '-'] = line.slice(1).split(' ')
      chains.set(name, { name, policy, rules: [] })
    } else if (line.startsWith('*')) {
      const table = tables.find((known) => known === line.slice(1).trim())
      chains = new Map()
      if (table) saved.push({ table, chains })
    }
  }
  return saved
}
