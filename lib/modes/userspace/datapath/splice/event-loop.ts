import { Epoll } from '../../../../kernel/sockets/epoll.js'
import type { Libc, Watch } from '../../../../kernel/sockets/libc.js'

/** Whatever waits for news of a descriptor. */
export interface Watcher {
  ready(events: number): void
}

/** Work put off until the events at hand are dealt with. */
export interface Task {
  run(): void
}

/**
 * Events of raw descriptors, by one epoll instance that Node's own loop watches in turn: one
 * wake-up of Node brings a batch of events, and messages and timers of the worker go on as usual.
 * To be watched costs a little for every event, so a busy loop stops that, and waits for its
 * events itself, a moment at a time, with a trip through Node's loop in between.
 */
export class EventLoop {
  readonly #libc: Libc
  readonly #epoll: Epoll
  readonly #watch: Watch
  /** By descriptor, as are the tags. */
  readonly #watchers: (Watcher | undefined)[] = []
  readonly #tags: number[] = []
  #lastTag = 0
  #tasks: Task[] = []
  #isScheduled = false
  #isTurning = false
  #isBusy = false

  constructor(libc: Libc) {
    this.#libc = libc
    this.#epoll = new Epoll(libc, eventsPerRound)
    this.#watch = libc.watch(this.#epoll.fd, () => this.#turn())
  }

  /** 0, or the negative error. */
  add(fd: number, events: number, watcher: Watcher): number {
    const tag = (this.#lastTag = (this.#lastTag + 1) | 0)
    const result = this.#epoll.add(fd, events, tag)
    if (result !== 0) return result
    this.#watchers[fd] = watcher
    this.#tags[fd] = tag
    return 0
  }

  modify(fd: number, events: number): void {
    this.#epoll.modify(fd, events, this.#tags[fd])
  }

  /** Runs the task once the events at hand are dealt with; before the next ones are asked for. */
  later(task: Task): void {
    this.#tasks.push(task)
    if (!this.#isTurning) this.#schedule()
  }

  /**
   * At once: putting closes off until the events at hand are dealt with costs a tenth of the
   * connection rate. The number may come back in the meantime, hence the tags.
   */
  close(fd: number): void {
    this.#watchers[fd] = undefined
    this.#libc.close(fd)
  }

  /** Watches it no longer. */
  forget(fd: number): void {
    this.#epoll.remove(fd)
    this.#watchers[fd] = undefined
  }

  /** For sockets that another process may hold as well: their events would go on coming. */
  closeShared(fd: number): void {
    this.forget(fd)
    this.close(fd)
  }

  /** Ends the loop; every descriptor has to be closed already. */
  end(): void {
    this.#watch.close()
    this.#epoll.close()
  }

  #turn(): void {
    this.#isTurning = true
    let events = 0
    for (let round = 0; round < roundsPerTurn; round++) {
      const count = this.#epoll.wait(
        this.#isBusy && round === 0 && !this.#hasTasks ? busyWaitMs : 0,
      )
      this.#dispatch(count)
      const isQuiet = count <= 0 && !this.#hasTasks
      this.#runTasks()
      if (isQuiet) break
      events += Math.max(count, 0)
    }
    this.#isTurning = false
    this.#settle(events)
  }

  #dispatch(count: number): void {
    for (let index = 0; index < count; index++) {
      const fd = this.#epoll.fdAt(index)
      // An event of a descriptor that was closed since must not reach its successor.
      if (this.#tags[fd] !== this.#epoll.tagAt(index)) continue
      this.#watchers[fd]?.ready(this.#epoll.eventsAt(index))
    }
  }

  /** Decides who waits for the next events: this loop while it is busy, otherwise Node's. */
  #settle(events: number): void {
    if (!this.#isBusy && events >= busyEvents) {
      this.#isBusy = true
      this.#watch.stop()
    } else if (this.#isBusy && events === 0 && !this.#hasTasks) {
      this.#isBusy = false
      this.#watch.start()
    }
    if (this.#isBusy || this.#hasTasks) this.#schedule()
  }

  get #hasTasks(): boolean {
    return this.#tasks.length > 0
  }

  #runTasks(): void {
    if (!this.#hasTasks) return
    const tasks = this.#tasks
    this.#tasks = []
    for (const task of tasks) task.run()
  }

  #schedule(): void {
    if (this.#isScheduled) return
    this.#isScheduled = true
    setImmediate(() => {
      this.#isScheduled = false
      this.#turn()
    })
  }
}

const eventsPerRound = 256
/** Enough to spare most trips through Node's loop, few enough to let its timers be on time. */
const roundsPerTurn = 8
/** Events in one turn that make a loop a busy one. */
const busyEvents = 32
/** Timers of Node may be late by as much. */
const busyWaitMs = 1
