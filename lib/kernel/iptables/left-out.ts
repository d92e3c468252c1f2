/**
 * A rule that nft has written into a table of iptables may be one that iptables cannot read. Then
 * `iptables-save` leaves out the whole table, and succeeds. `iptables` still lists each other chain.
 */
import { isIptablesError, leftOutError } from './error.js'
import { isChainName } from './rule.js'
import type { Table } from './batch.js'
import type { PlacedRule } from './options.js'
import type { SavedVisitor } from './saved.js'

/** The chains of iptables that the kernel calls. */
const builtIn: ReadonlySet<string> = new Set([
  ...['PREROUTING', 'INPUT', 'FORWARD', 'OUTPUT', 'POSTROUTING'],
])

/** Each chain takes a program, so a few milliseconds. More are read only for who needs some of them. */
const mostChains = 1000

interface LeftOutTable {
  readonly table: Table
  /** All chains as `table chain`. Where the caller cannot list them, those of `sought` are known. */
  readonly all: ReadonlySet<string> | undefined
  /** Undefined for who needs all, or an error. */
  readonly wants: ((chain: string) => boolean) | undefined
  /** Undefined for a chain that cannot be listed. */
  readonly list: (chain: string) => Promise<readonly string[] | undefined>
  /** What is looked for in such a chain. */
  readonly sought: readonly PlacedRule[] | undefined
  readonly has: (one: PlacedRule) => Promise<boolean>
}

export async function visitChains(visitor: SavedVisitor, leftOut: LeftOutTable): Promise<void> {
  const { table, all, wants, list, sought = [], has } = leftOut
  const names = all ? namesIn(table, all) : [...new Set(sought.map(({ chain }) => chain))]
  if (!wants && (!all || names.length > mostChains)) {
    // The caller has no jump in this table.
    if (leftOut.sought?.length === 0) return
    throw leftOutError(table)
  }
  const wanted = wants ? names.filter(wants) : names
  for (const name of names) visitor.chain(table, name, builtIn.has(name) ? 'ACCEPT' : '-')
  for (const name of wanted) {
    const rules = await list(name)
    for (const rule of rules ?? []) visitor.rule(table, name, rule)
    for (const one of rules ? [] : sought) {
      if (one.chain === name && (await has(one))) visitor.rule(table, name, one.rule.text)
    }
  }
}

/** The chains of a table that iptables can name. */
function namesIn(table: Table, all: ReadonlySet<string>): readonly string[] {
  return [...all].flatMap((placed) => {
    const [of, name = ''] = placed.split(' ')
    return of === table && isChainName(name) ? [name] : []
  })
}

/** Whether iptables cannot list a chain for that reason. It can be read and written all the same. */
export function isLeftOut(error: unknown): boolean {
  return isIptablesError(error) && /chain .* is incompatible/.test(error.detail)
}
