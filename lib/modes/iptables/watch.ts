import { counted } from '../../state/names.js'
import { isEnding } from '../../async.js'
import { Complaints } from '../complaints.js'
import { chains } from './names.js'
import { isIptablesError, type Table } from '../../kernel/iptables.js'
import { messageOf } from '../../errors.js'
import { Verification } from './verify.js'
import { ownTables } from './full-sync.js'
import type { FamilyRules } from './apply.js'
import { LookPauses, type ForeignCommits } from '../foreign-commits.js'
import { Reported, type ChainDifference } from '../reported-differences.js'
import type { Log } from '../mode.js'

interface WatchOptions {
  readonly rules: FamilyRules
  readonly foreign: ForeignCommits
  readonly log: Log
  /** A foreign change must be repaired within this time. The time may change. */
  readonly periodMs: () => number
  /** Called with a text that says what is wrong. */
  readonly changed: (what: string) => void
}

/** Chains that always have rules. A flush of a table empties them, but leaves the canary. */
const neverEmpty: Readonly<Partial<Record<Table, string>>> = {
  nat: chains.postrouting,
  filter: chains.forward,
}
/** How often a flush is looked for in one period. */
const looksPerReading = 4
/**
 * The most readings in a row. One is repeated if something seems wrong and a sync ran meanwhile.
 */
const mostReadings = 3

/**
 * Watches the rules until the signal. It often checks whether a table was flushed or deleted, and
 * reads all rules once in a period. It changes nothing (IT46). If the kernel counts transactions, it
 * reads only after a foreign one, and a sync waits until all rules are read.
 */
export async function watchRules(options: WatchOptions, signal: AbortSignal): Promise<void> {
  const { rules, foreign, log, changed } = options
  const reported = new Reported(log)
  const complaints = new Complaints(log)
  const pauses = new LookPauses(foreign)
  /** The mark and number of full syncs when all rules were last found right. */
  let verified: string | undefined
  let reading = looksPerReading
  for (let look = 1; ; look++) {
    // Looks come a little early, so that the repair also happens within the period.
    await pauses.pause((options.periodMs() * 0.9) / looksPerReading, signal)
    if (signal.aborted) return
    // A look waits for the sync that runs. Else none would find a time where syncs take long.
    if (!(await rules.settled())) continue
    try {
      const mark = foreign.mark
      const present = mark === undefined ? undefined : `${mark} ${rules.fullSyncs}`
      if (present !== undefined && present === verified) continue
      if (look < reading) {
        const gone = await lookForFlush(rules)
        if (gone !== undefined) changed(gone)
        continue
      }
      reading = look + looksPerReading
      const read = await readAll(rules, foreign)
      complaints.settled()
      if (!read) continue
      const { differences, endMark } = read
      const fresh = reported.fresh(differences, { fullSyncs: rules.fullSyncs, mark, endMark })
      const [first] = fresh
      verified = first ? undefined : present
      if (!first) continue
      // The next look shows whether the repair has helped.
      reading = look + 1
      const others = fresh.length > 1 ? `, and ${counted(fresh.length - 1, 'more chain')}` : ''
      changed(`${first.chain} ${first.what}${others}`)
    } catch (error) {
      if (await isEnding(signal)) return
      const fields = { error: messageOf(error) }
      const message = 'could not check the iptables rules'
      if (isIptablesError(error, 'locked')) log.debug(fields, message)
      else complaints.warn(fields, message)
    }
  }
}

async function lookForFlush({ iptables }: FamilyRules): Promise<string | undefined> {
  for (const table of ownTables) {
    if (!(await iptables.listChain(table, chains.canary))) {
      return `chain ${chains.canary} is gone from table ${table}`
    }
    const chain = neverEmpty[table]
    if (chain !== undefined && (await iptables.listChain(table, chain))?.length === 0) {
      return `table ${table} was flushed: chain ${chain} is empty`
    }
  }
  return undefined
}

interface WholeReading {
  readonly differences: readonly ChainDifference[]
  readonly endMark: number | undefined
}

/** Undefined if the content of the kernel is not known; then a full sync follows. */
async function readAll(
  rules: FamilyRules,
  foreign: ForeignCommits,
): Promise<WholeReading | undefined> {
  for (let count = 1; ; count++) {
    const before = await rules.settled()
    if (!before) return undefined
    const verification = new Verification(before, before.usesLocalnet)
    await verification.prepare()
    const endMark = await foreign.undisturbed(() => rules.iptables.visit(verification))
    const after = await rules.settled()
    if (!after) return undefined
    const differences = verification.differences(after)
    // A rule may have come and gone while the chain was read.
    if (differences.length === 0 || before === after || count === mostReadings)
      return { differences, endMark }
  }
}
