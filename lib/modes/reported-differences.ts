import type { Log } from './mode.js'

/** A chain that is not as we wrote it. */
export interface ChainDifference {
  readonly chain: string
  /** In words. */
  readonly what: string
  /** The content that differs. A difference that comes back has the same fingerprint. */
  readonly fingerprint: string
  /** As many rules are missing as are too many, so each may be one that is printed in other words. */
  readonly mayBeWording: boolean
}

/** When a reading began. */
interface Moment {
  /** How often everything was written. */
  readonly fullSyncs: number
  /** The mark of other programs, see ForeignCommits. */
  readonly mark: number | undefined
}

interface Reading extends Moment {
  /** The mark when the reading ended. */
  readonly endMark: number | undefined
}

/** What is known of a difference that was reported. */
interface Known extends Moment {
  readonly fingerprint: string
  /** Readings since it is ignored, from 1 on. */
  readonly ignored: number
  readonly isTold: boolean
}

/**
 * The readings that ignore a difference where no mark tells whether another program has made it
 * again. Then it is written anew, because a change that somebody repeats must not stay for ever.
 */
const readingsToIgnore = 20

/**
 * Ignores a difference that is still there after everything was written anew, if no other program
 * has written meanwhile. Then this version of iptables prints some rule in other words than it was
 * written. The log says so once.
 */
export class Reported {
  readonly #log: Log
  #chains = new Map<string, Known>()

  constructor(log: Log) {
    this.#log = log
  }

  /** The differences that need a repair. */
  fresh(
    differences: readonly ChainDifference[],
    { endMark, ...moment }: Reading,
  ): ChainDifference[] {
    const before = this.#chains
    this.#chains = new Map()
    return differences.filter(({ chain, what, fingerprint, mayBeWording }) => {
      const last = before.get(chain)
      const known = last?.fingerprint === fingerprint ? last : undefined
      // Words never explain a rule that is missing. Where nothing counts commits, somebody took it again.
      const isAgain = moment.mark === undefined && !mayBeWording
      const isBack = known !== undefined && !isAgain && isIgnored(known, { ...moment, endMark })
      const isTold = isBack || known?.isTold === true
      const ignored = isBack ? known.ignored + 1 : 0
      this.#chains.set(chain, { fingerprint, ...moment, ignored, isTold })
      if (isBack && !known.isTold) {
        this.#log.warn({ chain, what }, 'a chain still differs after it was written anew; ignored')
      }
      return !isBack
    })
  }
}

function isIgnored({ ignored, ...known }: Known, { fullSyncs, mark, endMark }: Reading): boolean {
  if (ignored > 0) return mark !== undefined || ignored < readingsToIgnore
  return known.fullSyncs < fullSyncs && known.mark === endMark
}
