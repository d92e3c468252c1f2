import { closeSync, openSync, statSync } from 'node:fs'
import { dirname } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { ifPossible, KernelError } from '../../errors.js'
import { loadLibc } from '../../kernel/sockets/libc.js'
import { makeOwnFolder } from '../../kernel/own-folder.js'
import { Turns } from '../../async.js'
import { subtractFrom } from './endpoint-counts.js'
import { keyOf, type CarriedGrowth } from './messages.js'
import { loadCounts, lockOf, saveCounts, type SavedCounts } from './saved-counts.js'

/** The part of FlowCounter that this file needs. */
interface Sum {
  save(): SavedCounts
  add(growth: CarriedGrowth): void
}

/**
 * The file of numbers where the mode carries connections itself. In a take-over two processes write
 * it: one drains while the other serves. The file has the sum, and each process adds to it what it
 * alone has counted.
 */
export class SharedCounts {
  readonly #file: string
  readonly #sum: Sum
  readonly #turns = new Turns()
  /** What the file contained when this process last read or wrote it. The sum has it, too. */
  #known: CarriedGrowth = { counts: [], turnedAway: [] }
  #seen = ''
  #since = Date.now()

  constructor(file: string, sum: Sum) {
    this.#file = file
    this.#sum = sum
  }

  /** Adds to the sum what other processes have written. */
  catchUp(): Promise<void> {
    return this.#turns.take(() => this.#catchUp())
  }

  save(): Promise<void> {
    return this.#turns.take(async () => {
      const unlock = await lock(lockOf(this.#file))
      try {
        await this.#catchUp()
        // Connections are counted here, so a later process in another mode must not count them from
        // the kernel's table.
        const until = Date.now()
        const carried = { since: this.#since, until }
        const saved = { ...this.#sum.save(), heardUntil: until, carried }
        await saveCounts(this.#file, saved)
        this.#known = saved
        this.#seen = stampOf(this.#file)
      } finally {
        unlock()
      }
    })
  }

  async #catchUp(): Promise<void> {
    const seen = stampOf(this.#file)
    if (seen === this.#seen) return
    const saved = await loadCounts(this.#file)
    this.#seen = seen
    if (!saved) return
    // Between two such modes no other one has counted.
    const { carried, heardUntil } = saved
    if (carried?.until === heardUntil) this.#since = Math.min(this.#since, carried.since)
    this.#sum.add(growthOf(saved, this.#known))
    this.#known = saved
  }
}

/** Every save makes a new file. One that nobody lets us see counts as none; to save says why. */
function stampOf(file: string): string {
  const stat = ifPossible(() => statSync(file, { bigint: true }))
  return stat ? `${stat.ino} ${stat.mtimeNs}` : ''
}

const exclusiveNonBlocking = 2 | 4
const triesToLock = 500
const tryEveryMs = 10

/** The kernel frees the lock of a process that dies. */
async function lock(path: string): Promise<() => void> {
  makeOwnFolder(dirname(path))
  // Where this library is missing, no process can take over from another.
  const libc = await loadLibc().catch(() => undefined)
  if (!libc) return () => undefined
  const fd = openSync(path, 'a', 0o600)
  for (let tries = 0; libc.flock(fd, exclusiveNonBlocking) < 0; tries++) {
    if (tries === triesToLock) {
      closeSync(fd)
      throw new KernelError('busy', `another process holds the lock ${path}`)
    }
    await delay(tryEveryMs)
  }
  return () => closeSync(fd)
}

/** The numbers of `now` without those of `before`. */
function growthOf(now: CarriedGrowth, before: CarriedGrowth): CarriedGrowth {
  const counts = new Map(now.counts.map((each) => [keyOf(each), { ...each }]))
  for (const less of before.counts) {
    const grown = counts.get(keyOf(less))
    if (!grown) continue
    grown.opened = Math.max(0, grown.opened - less.opened)
    subtractFrom(grown, less)
  }
  const turnedAway = new Map(now.turnedAway.map((each) => [keyOf(each), { ...each }]))
  for (const less of before.turnedAway) {
    const grown = turnedAway.get(keyOf(less))
    if (!grown) continue
    grown.refused = Math.max(0, grown.refused - less.refused)
    grown.dropped = Math.max(0, grown.dropped - less.dropped)
  }
  return { counts: [...counts.values()], turnedAway: [...turnedAway.values()] }
}
