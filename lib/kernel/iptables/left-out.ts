/**
 * A rule that nft has written into a table of iptables may be one that iptables cannot read. Then
 * `iptables-save` leaves out the whole table, and succeeds. `iptables` still lists each other chain.
 */
import { splitArguments } from './arguments.js'
import { isIptablesError, leftOutError } from './error.js'
import { checkChain, isChainName } from './rule.js'
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
  /** Undefined for a chain that is gone meanwhile, or of which no rule is known. */
  readonly list: (chain: string) => Promise<readonly string[] | undefined>
  /** What `list` finds in a chain that iptables cannot list. */
  readonly sought: readonly PlacedRule[] | undefined
}

export async function visitChains(visitor: SavedVisitor, leftOut: LeftOutTable): Promise<void> {
  const { table, all, wants, list, sought = [] } = leftOut
  const names = all ? namesIn(table, all) : [...new Set(sought.map(({ chain }) => chain))]
  if (!wants && (!all || names.length > mostChains)) {
    // The caller has no jump in this table.
    if (leftOut.sought?.length === 0) return
    throw leftOutError(table)
  }
  const wanted = wants ? names.filter(wants) : names
  for (const name of names) visitor.chain(table, name, builtIn.has(name) ? 'ACCEPT' : '-')
  for (const name of wanted) {
    for (const rule of (await list(name)) ?? []) visitor.rule(table, name, rule)
  }
}

/** The chains of a table that iptables can name. */
function namesIn(table: Table, all: ReadonlySet<string>): readonly string[] {
  return [...all].flatMap((placed) => {
    const [of, name = ''] = placed.split(' ')
    return of === table && isChainName(name) ? [name] : []
  })
}

/** What iptables prints; undefined where there is no such chain or rule, or it cannot be listed. */
type Ask = (action: string, args: readonly string[]) => Promise<string | undefined>

/**
 * The rules of a chain, or those of `sought` if iptables cannot list it. Some versions give the same
 * answer about a chain that does not exist, so where none is known the chain is undefined.
 */
export async function listChain(
  ask: Ask,
  [table, chain]: readonly [Table, string],
  sought: readonly PlacedRule[] = [],
): Promise<readonly string[] | undefined> {
  const answer = await ask(`list ${table} ${chain}`, ['-t', table, '-S', checkChain(chain)])
  if (answer !== undefined) {
    const prefix = `-A ${chain} `
    const lines = answer.split('\n').filter((line) => line.startsWith(prefix))
    return lines.map((line) => line.slice(prefix.length))
  }
  const found: string[] = []
  for (const { rule, ...place } of sought) {
    if (place.table !== table || place.chain !== chain) continue
    const args = ['-t', table, '-C', chain, ...splitArguments(rule.text)]
    if ((await ask(`look for a rule in ${table} ${chain}`, args)) !== undefined)
      found.push(rule.text)
  }
  return found.length > 0 ? found : undefined
}

/** Whether iptables cannot list a chain for that reason. Its rules can be looked for, and written. */
export function isLeftOut(error: unknown): boolean {
  return isIptablesError(error) && /chain .* is incompatible/.test(error.detail)
}
