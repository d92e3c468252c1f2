import type { Log } from './mode.js'

/** A chain that is not as we wrote it. */
export interface ChainDifference {
  readonly chain: string
  /** In words. */
  readonly what: string
  /** The content that differs. A difference that comes back has the same fingerprint. */
  readonly fingerprint: string
}

/** How often everything was written, and the mark of other programs, see ForeignCommits. */
interface Moment {
  readonly fullSyncs: number
  readonly mark: number | undefined
}

/**
 * Ignores a difference that is still there after everything was written anew, if no other program
 * has written meanwhile. Then this version of iptables prints some rule in other words than it was
 * written. The log says so once.
 */
export class Reported {
  readonly #log: Log
  #chains = new Map<string, Moment & { readonly fingerprint: string }>()

  constructor(log: Log) {
    this.#log = log
  }

  /** The differences that need a repair. */
  fresh(differences: readonly ChainDifference[], { fullSyncs, mark }: Moment): ChainDifference[] {
    const before = this.#chains
    this.#chains = new Map()
    return differences.filter(({ chain, what, fingerprint }) => {
      const known = before.get(chain)
      const isBack =
        known?.fingerprint === fingerprint &&
        known.fullSyncs < fullSyncs &&
        (known.fullSyncs < 0 || known.mark === mark)
      this.#chains.set(chain, { fingerprint, fullSyncs: isBack ? -1 : fullSyncs, mark })
      if (isBack && known.fullSyncs >= 0) {
        this.#log.warn({ chain, what }, 'a chain still differs after it was written anew; ignored')
      }
      return !isBack
    })
  }
}
