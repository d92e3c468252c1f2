import { counted } from '../state/names.js'
import type { IpFamily } from '../state/ip.js'
import type { Meter, ServiceFailure } from '../modes/mode.js'
import type { SyncReport } from '../sync/syncer.js'

/** One line of `/healthz?verbose` and of `/statusz`. */
export interface StatusLine {
  readonly name: string
  readonly isGood: boolean
  readonly text: string
}

interface ModeStatusOptions {
  readonly families: readonly IpFamily[]
  readonly mode: string
  /** Why the requested mode does not run; empty when it does. */
  readonly fallback: string
  readonly meter: Meter
  /** Milliseconds since 1970. */
  readonly now: () => number
}

interface FamilyStatus {
  syncs: number
  failed: number
  /** The time since which syncs fail, and the newest error; undefined while they succeed. */
  failing: { readonly since: number; readonly error: string } | undefined
  /** Service ports that the newest successful sync could not program. */
  left: { readonly since: number; readonly ports: readonly ServiceFailure[] } | undefined
}

/** Collects what fails in the mode that runs, since when and why. */
export class ModeStatus {
  readonly #options: ModeStatusOptions
  readonly #families = new Map<IpFamily, FamilyStatus>()
  #foreignChanges = 0
  #newest: { readonly at: number; readonly reason: string } | undefined
  /** Families that have not been written anew since the newest foreign change. */
  readonly #unrepaired = new Set<IpFamily>()

  constructor(options: ModeStatusOptions) {
    this.#options = options
    for (const family of options.families) {
      this.#families.set(family, { syncs: 0, failed: 0, failing: undefined, left: undefined })
    }
  }

  synced({ family, outcome, full, failed, error = 'for an unknown reason' }: SyncReport): void {
    const status = this.#families.get(family)
    if (!status) return
    const now = this.#options.now()
    status.syncs++
    if (outcome === 'failed') {
      status.failed++
      status.failing = { since: status.failing?.since ?? now, error }
      return
    }
    status.failing = undefined
    status.left =
      failed.length > 0 ? { since: status.left?.since ?? now, ports: failed } : undefined
    const labels = { ip_family: family }
    this.#options.meter.gauge('service_ports_not_programmed', labels, failed.length)
    if (full) this.#unrepaired.delete(family)
  }

  /** The mode found that somebody else changed its rules, and everything is written anew. */
  changedByOthers(reason: string): void {
    this.#foreignChanges++
    this.#newest = { at: this.#options.now(), reason }
    for (const family of this.#families.keys()) this.#unrepaired.add(family)
    this.#options.meter.count('foreign_changes_total', {})
  }

  lines(): readonly StatusLine[] {
    const { mode, fallback } = this.#options
    return [
      { name: 'mode', isGood: fallback === '', text: [mode, fallback].filter(Boolean).join(': ') },
      ...[...this.#families].flatMap(([family, status]) => familyLines(family, status)),
      this.#foreignLine(),
    ]
  }

  #foreignLine(): StatusLine {
    const name = 'foreign changes'
    if (!this.#newest) return { name, isGood: true, text: 'none' }
    const isGood = this.#unrepaired.size === 0
    const { at, reason } = this.#newest
    const repaired = isGood ? 'all repaired' : 'the newest not repaired yet'
    const text = `${this.#foreignChanges}, ${repaired}; newest at ${timeText(at)}: ${reason}`
    return { name, isGood, text }
  }
}

function familyLines(family: IpFamily, status: FamilyStatus): readonly StatusLine[] {
  const { syncs, failed, failing, left } = status
  if (syncs === 0) {
    const text = 'none yet, nothing is programmed; the log says what this proxy waits for'
    return [{ name: `${family} syncs`, isGood: false, text }]
  }
  const counts = `${counted(syncs, 'sync')}, ${failed} failed`
  const line = failing
    ? `${counts}; failing since ${timeText(failing.since)}: ${failing.error}`
    : counts
  const sync = { name: `${family} syncs`, isGood: !failing, text: line }
  const [first] = left?.ports ?? []
  const name = `${family} service ports`
  if (!left || !first) {
    const text = failing ? 'unknown while syncs fail' : 'all programmed'
    return [sync, { name, isGood: !failing, text }]
  }
  const { length } = left.ports
  const text = `${length} not programmed since ${timeText(left.since)}; ${first.key}: ${first.reason}`
  return [sync, { name, isGood: false, text }]
}

function timeText(ms: number): string {
  return new Date(ms).toISOString()
}
