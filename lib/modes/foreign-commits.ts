import { pause } from '../async.js'
import { ifPossible } from '../errors.js'

/**
 * Tells whether other programs wrote to nf_tables. The kernel counts all transactions of the
 * network namespace, and this class counts ours. The kernel is asked with one small request that
 * lists no rules. It also keeps our writes and the readings of rules apart.
 */
export class ForeignCommits {
  readonly #generation: (() => number) | undefined
  #own = 0
  /** Our own writes that still run: both IP families may write at once. */
  #working = 0
  #before = 0
  #mostCommits = 0
  /** While our writes shall wait for readings: resolves at their end. */
  #readings: Promise<void> | undefined
  /** How long a program reads, at most a second. Zero until we have read ourselves. */
  #readingMs = 0
  #writtenAt = -Infinity
  /** The end of the last pause in which a program could read. */
  #pausedAt = -Infinity

  /** The legacy backend of iptables counts no transactions, so it has no `generation`. */
  constructor(generation?: () => number) {
    this.#generation = generation
  }

  /**
   * A number that changes when another program commits. Undefined without a generation, and while
   * our own writes run, because their commits are not counted yet.
   */
  get mark(): number | undefined {
    if (!this.#generation || this.#working > 0) return undefined
    return this.#generation() - this.#own
  }

  /**
   * Does work that commits at most `mostCommits` times. An empty transaction does not count. Work
   * that fails counts for none: a commit in that time may be of another program, and to take our
   * own for one only costs a reading.
   */
  async around<T>(mostCommits: number, work: () => Promise<T>): Promise<T> {
    if (this.#readings) await this.#readings
    if (this.#working === 0) {
      // This throws if the process has lost its rights. Then the work is not counted as running.
      this.#before = this.#generation?.() ?? 0
      this.#mostCommits = 0
    }
    this.#working++
    try {
      const result = await work()
      this.#mostCommits += mostCommits
      return result
    } finally {
      if (--this.#working === 0) {
        const commits = (this.#generation?.() ?? 0) - this.#before
        this.#own += Math.min(commits, this.#mostCommits)
        this.#writtenAt = performance.now()
      }
    }
  }

  /**
   * Reads while our own writes wait, for some seconds at most. The programs of iptables begin to
   * read anew after each commit, also of the other IP family. Among many changes they never ended.
   * Returns the mark at the end. Later there is none: own writes have waited, and begin.
   */
  undisturbed(read: () => Promise<unknown>): Promise<number | undefined> {
    const done = () => this.mark
    if (!this.#generation) return read().then(done)
    const before = this.#readings
    const ended = new AbortController()
    const readings = pause(longestReadingMs, ended.signal)
      .then(() => before)
      .then(() => {
        if (this.#readings === readings) this.#readings = undefined
      })
    this.#readings = readings
    const began = performance.now()
    return read()
      .then(done)
      .finally(() => {
        this.#readingMs = Math.min(1000, (performance.now() - began) * roomToRead)
        ended.abort()
      })
  }

  /**
   * Resolves when nothing is being read. Now and then it waits longer, so that programs of others
   * also come to an end.
   */
  async whenQuiet(): Promise<void> {
    if (this.#readings) await this.#readings
    const now = performance.now()
    const end = this.#writtenAt + this.#readingMs
    if (end <= now) this.#pausedAt = now
    else if (now - this.#pausedAt >= pauseEveryMs) this.#pausedAt = end
    if (this.#pausedAt > now) await pause(this.#pausedAt - now, undefined)
  }
}

/**
 * Pauses between two looks at rules. If nothing was committed in a whole pause, foreign commits end
 * the next one early. So a node on which others write all the time is not looked at more often.
 */
export class LookPauses {
  readonly #foreign: Pick<ForeignCommits, 'mark'>
  readonly #askMs: number
  #isQuiet = true

  constructor(foreign: Pick<ForeignCommits, 'mark'>, askMs = 500) {
    this.#foreign = foreign
    this.#askMs = askMs
  }

  /** Resolves after `ms`, earlier at such a commit, or at once at the signal. */
  async pause(ms: number, signal: AbortSignal): Promise<void> {
    const end = performance.now() + ms
    let mark = this.#mark()
    let wasQuiet = true
    for (let left = ms; left > 0 && !signal.aborted; left = end - performance.now()) {
      await pause(Math.min(this.#askMs, left), signal)
      const now = this.#mark()
      // Another program may make its change in several steps.
      if (now === mark && !wasQuiet && this.#isQuiet) break
      // Our own writes may have run at the beginning.
      if (now !== undefined && mark !== undefined && now !== mark) wasQuiet = false
      mark = now ?? mark
    }
    this.#isQuiet = wasQuiet
  }

  /** Undefined also while the kernel does not tell: the look itself says why. */
  #mark(): number | undefined {
    return ifPossible(() => this.#foreign.mark)
  }
}

/** Programs of others may be slower, or begin a moment after our write. */
const roomToRead = 1.5
const pauseEveryMs = 10_000

/** Reading the rules of 20,000 Services takes half as long. */
const longestReadingMs = 5_000

/** Reads the kernel's count of nf_tables transactions. Undefined where it cannot be read. */
export async function openGeneration(): Promise<(() => number) | undefined> {
  try {
    // Imported late: koffi does not load on every node.
    const { openChannel } = await import('../kernel/netlink/channel.js')
    const { protocols } = await import('../kernel/netlink/protocol.js')
    const { readGeneration } = await import('../kernel/nftables-netlink/commit-watch.js')
    const channel = openChannel(protocols.netfilter)
    readGeneration(channel)
    return () => readGeneration(channel).id
  } catch {
    return undefined
  }
}
