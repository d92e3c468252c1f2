import { chains } from './names.js'
import { foreignChange, type Baseline } from './verify.js'
import { foundIn } from './full-sync.js'
import { isIptablesError } from '../../kernel/iptables.js'
import { messageOf } from '../../errors.js'
import { setTimeout as sleep } from 'node:timers/promises'
import type { FamilyRules } from './apply.js'
import type { Log } from '../mode.js'
import type { SavedTable } from '../../kernel/iptables.js'

export interface WatchOptions {
  readonly rules: FamilyRules
  readonly log: Log
  /** A foreign change must be repaired within this time. */
  readonly periodMs: number
  /** Called with what is wrong. */
  readonly changed: (what: string) => void
}

const tables = ['nat', 'filter', 'mangle'] as const
/** A look at the canaries is so much cheaper than reading all rules. */
const looksPerReading = 4

/**
 * Looks after the rules until the signal: often whether the canary chains still live, which tells
 * of a flush, and once in a period at all rules. It reads only, and waits for no sync (IT46).
 */
export async function watchRules(options: WatchOptions, signal: AbortSignal): Promise<void> {
  const { rules, log, changed } = options
  const baseline: Baseline = new Map()
  // A little early, so that the repair too falls within the period.
  const pauseMs = (options.periodMs * 0.9) / looksPerReading
  for (let look = 1; await pause(pauseMs, signal); look++) {
    if (!rules.plan) continue
    try {
      const isReading = look % looksPerReading === 0
      const what = isReading ? await readAll(rules, baseline) : await lookAtCanaries(rules)
      if (what === undefined) continue
      baseline.clear()
      changed(what)
    } catch (error) {
      const level = isIptablesError(error, 'locked') ? 'debug' : 'warn'
      log[level]({ error: messageOf(error) }, 'could not look after the iptables rules')
    }
  }
}

async function lookAtCanaries({ iptables }: FamilyRules): Promise<string | undefined> {
  for (const table of tables) {
    if (!(await iptables.listChain(table, chains.canary))) {
      return `chain ${chains.canary} is gone from table ${table}`
    }
  }
  return undefined
}

async function readAll(rules: FamilyRules, baseline: Baseline): Promise<string | undefined> {
  const before = await rules.settled()
  const usesLocalnet = rules.plan?.usesLocalnet ?? false
  const saved: SavedTable[] = []
  for (const table of tables) saved.push(...(await rules.iptables.save(table)))
  const after = await rules.settled()
  // A sync that failed meanwhile explains everything, and will be followed by a full one.
  if (!before || !after) return undefined
  return foreignChange({ found: foundIn(saved), usesLocalnet, before, after, baseline })
}

/** False when the signal came first. */
async function pause(ms: number, signal: AbortSignal): Promise<boolean> {
  try {
    await sleep(ms, undefined, { signal })
    return true
  } catch {
    return false
  }
}
