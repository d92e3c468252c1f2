import { spawn, type ChildProcess } from 'node:child_process'
import { createInterface } from 'node:readline'
import { pause } from '../../async.js'
import { ifPossible } from '../../errors.js'
import type { Command, TableRef } from './model.js'
import type { RulesetWriter } from './nft.js'
import { programEnvironment } from '../iptables/command.js'

/** The time until a program that ended is started again, and then until it surely listens. */
const usualRestartMs = 5_000

/** Starts `nft monitor`. Tests pass a function that enters a namespace first. */
type StartMonitor = () => ChildProcess

interface MonitorOptions {
  readonly tables: readonly TableRef[]
  /** The name of a chain that nobody else uses. It makes our transactions known. */
  readonly mark: string
  /** Somebody else's transaction touched one of the tables. */
  readonly onForeign: () => void
  /**
   * Nobody told what happened before the program listened: it had ended, or was late at the start.
   */
  readonly onMissed: () => void
  readonly start?: StartMonitor
  readonly restartMs?: number
}

const startMonitor: StartMonitor = () =>
  spawn('nft', ['monitor'], {
    stdio: ['ignore', 'pipe', 'ignore'],
    env: programEnvironment(),
  })

/**
 * Tells foreign transactions from our own where netlink cannot be used. `nft monitor` prints the
 * changes and the end of every transaction, but not who wrote it. So each of ours adds and deletes
 * an empty chain, which is never there afterwards. Counting would not do: while we write often, an
 * event of ours is always missing, and one that is lost would hide one of others.
 */
export class NftMonitor {
  readonly #options: MonitorOptions
  readonly #restartMs: number
  readonly #mentions: readonly string[]
  #touched = false
  #isOurs = false
  /** Transactions of ours since the program was started, and those that it has printed. */
  #written = 0
  #printed = 0

  constructor(options: MonitorOptions) {
    this.#options = options
    this.#restartMs = options.restartMs ?? usualRestartMs
    this.#mentions = options.tables.map(({ family, name }) => ` ${family} ${name}`)
  }

  /** Makes the transactions of a writer known as ours. */
  guarded(writer: RulesetWriter): RulesetWriter {
    const chain = { name: this.#options.mark, rules: [] }
    const mark: readonly Command[] = [
      { do: 'add-chain', chain },
      { do: 'delete-chain', chain },
    ]
    return {
      name: writer.name,
      commit: async ({ table, commands }) => {
        const bytes = await writer.commit({ table, commands: [...commands, ...mark] })
        this.#written++
        return bytes
      },
      check: (transaction) => writer.check(transaction),
    }
  }

  /** Listens until the signal. */
  async run(signal: AbortSignal): Promise<void> {
    for (let starts = 0; !signal.aborted; starts++) {
      // It cannot be started without memory or processes.
      const child = ifPossible(this.#options.start ?? startMonitor)
      if (!child) {
        await pause(this.#restartMs, signal)
        continue
      }
      const ended = new AbortController()
      const stop = () => child.kill()
      signal.addEventListener('abort', stop, { once: true })
      const end = new Promise((resolve) => {
        child.once('close', resolve)
        child.once('error', resolve)
      })
      this.#written = this.#printed = 0
      if (child.stdout) {
        createInterface({ input: child.stdout }).on('line', (line) => this.#read(line))
      }
      void this.#untilItListens(starts === 0, ended.signal)
      await end
      ended.abort()
      signal.removeEventListener('abort', stop)
      await pause(this.#restartMs, signal)
    }
  }

  /**
   * The program listens once it has read all rules of the node. It reads them anew while others
   * write, so it may be late. The pauses grow, because each report costs a full sync. Who ends
   * before the first one may always end so.
   */
  async #untilItListens(isFirst: boolean, ended: AbortSignal): Promise<void> {
    let isMissed = !isFirst
    for (let waitMs = this.#restartMs; this.#printed === 0 || isMissed; waitMs *= 2) {
      await pause(waitMs, ended)
      if (ended.aborted) return
      if (isMissed || this.#printed < this.#written) this.#options.onMissed()
      isMissed = false
    }
  }

  #read(line: string): void {
    if (!line.startsWith('# new generation')) {
      if (!this.#mentions.some((text) => isAbout(line, text))) return
      this.#touched = true
      this.#isOurs ||= line.startsWith('add chain ') && line.includes(` ${this.#options.mark}`)
      return
    }
    if (this.#isOurs) this.#printed++
    else if (this.#touched) this.#options.onForeign()
    this.#touched = this.#isOurs = false
  }
}

/** `add rule ip kube-proxy services …`, but not `add rule ip kube-proxy-other …`. */
function isAbout(line: string, text: string): boolean {
  const at = line.indexOf(text)
  const after = line[at + text.length]
  return at > 0 && (after === undefined || after === ' ')
}
