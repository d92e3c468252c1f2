import { spawn, type ChildProcess } from 'node:child_process'
import { createInterface } from 'node:readline'
import { pause } from '../../async.js'
import type { TableRef } from './model.js'
import { programEnvironment } from '../iptables/command.js'

interface MonitorTimes {
  /** The time between two looks at the counts. */
  readonly tickMs: number
  /** The time until a program that ended is started again. */
  readonly restartMs: number
}

const usualTimes: MonitorTimes = { tickMs: 500, restartMs: 5_000 }
/** After this many looks, missing events of our last transaction are given up. */
const lostTicks = 60

/** Starts `nft monitor`. Tests pass a function that enters a namespace first. */
type StartMonitor = () => ChildProcess

interface MonitorOptions {
  readonly tables: readonly TableRef[]
  /** Somebody else's transaction touched one of the tables. */
  readonly onForeign: () => void
  readonly start?: StartMonitor
  readonly times?: MonitorTimes
}

const startMonitor: StartMonitor = () =>
  spawn('nft', ['monitor'], {
    stdio: ['ignore', 'pipe', 'ignore'],
    env: programEnvironment(),
  })

/**
 * Tells foreign transactions from our own where netlink cannot be used. `nft monitor` prints the
 * changes and the end of every transaction. Each of our transactions accounts for one of the
 * printed ones. The others are foreign, once none of ours is under way.
 */
export class NftMonitor {
  readonly #options: MonitorOptions
  readonly #times: MonitorTimes
  readonly #mentions: readonly string[]
  #touched = false
  #seen = 0
  #own = 0
  #inFlight = 0

  constructor(options: MonitorOptions) {
    this.#options = options
    this.#times = options.times ?? usualTimes
    this.#mentions = options.tables.map(({ family, name }) => ` ${family} ${name}`)
  }

  /** Runs a transaction of ours and recognises its events as our own. */
  async around<T>(commit: () => Promise<T>): Promise<T> {
    this.#inFlight++
    try {
      const result = await commit()
      this.#own++
      return result
    } finally {
      this.#inFlight--
    }
  }

  async run(signal: AbortSignal): Promise<void> {
    await Promise.all([this.#judge(signal), this.#listen(signal)])
  }

  async #listen(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const child = this.#start()
      if (!child) {
        await pause(this.#times.restartMs, signal)
        continue
      }
      const stop = () => child.kill()
      signal.addEventListener('abort', stop, { once: true })
      const ended = new Promise((resolve) => {
        child.once('close', resolve)
        child.once('error', resolve)
      })
      if (child.stdout) {
        createInterface({ input: child.stdout }).on('line', (line) => this.#read(line))
      }
      await ended
      signal.removeEventListener('abort', stop)
      await pause(this.#times.restartMs, signal)
    }
  }

  /** Undefined where the program cannot be started now: no memory, no processes. */
  #start(): ChildProcess | undefined {
    try {
      return (this.#options.start ?? startMonitor)()
    } catch {
      return undefined
    }
  }

  #read(line: string): void {
    if (!line.startsWith('# new generation')) {
      this.#touched ||= this.#mentions.some((text) => isAbout(line, text))
      return
    }
    if (this.#touched) this.#seen++
    this.#touched = false
  }

  async #judge(signal: AbortSignal): Promise<void> {
    let before = ''
    let calmTicks = 0
    for (;;) {
      await pause(this.#times.tickMs, signal)
      if (signal.aborted) return
      // An event may come before or after the end of our transaction, so the numbers count only
      // when they are the same in two looks.
      const now = `${this.#seen} ${this.#own}`
      calmTicks = now === before && this.#inFlight === 0 ? calmTicks + 1 : 0
      before = now
      if (calmTicks === 0) continue
      if (this.#seen > this.#own) this.#options.onForeign()
      // The program takes a while to print a large transaction. Then missing events are lost.
      else if (this.#seen < this.#own && calmTicks < lostTicks) continue
      this.#seen = this.#own = calmTicks = 0
    }
  }
}

/** `add rule ip kube-proxy services …`, but not `add rule ip kube-proxy-other …`. */
function isAbout(line: string, text: string): boolean {
  const at = line.indexOf(text)
  const after = line[at + text.length]
  return at > 0 && (after === undefined || after === ' ')
}
