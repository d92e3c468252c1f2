import { Epoll } from '../../../../kernel/sockets/epoll.js'
import type { Libc, Watch } from '../../../../kernel/sockets/libc.js'

/** Gets the events of a descriptor. */
export interface Watcher {
  ready(events: number): void
}

/** Work that waits until all current events are handled. */
export interface Task {
  run(): void
}

/**
 * Events of raw descriptors. Node's loop watches one epoll instance, so that one wake-up of Node
 * brings a batch of events, and messages and timers of the worker go on as usual. The watch costs
 * a little for every event. A busy loop therefore stops the watch and waits for events itself, for
 * a short time, and lets Node's loop run in between.
 */
export class EventLoop {
  readonly #libc: Libc
  readonly #epoll: Epoll
  readonly #watch: Watch
  /** By descriptor, like the tags. */
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

  /** Runs the task after the current events, before the loop asks for the next ones. */
  later(task: Task): void {
    this.#tasks.push(task)
    if (!this.#isTurning) this.#schedule()
  }

  /**
   * Closes at once: closing after the current events would cost a tenth of the connection rate. A
   * new descriptor may get the same number before the old events are handled; tags tell them
   * apart.
   */
  close(fd: number): void {
    this.#watchers[fd] = undefined
    this.#libc.close(fd)
  }

  /** Stops watching the descriptor. */
  forget(fd: number): void {
    this.#epoll.remove(fd)
    this.#watchers[fd] = undefined
  }

  /** For a socket that another process may have, too: closing alone would not stop its events. */
  closeShared(fd: number): void {
    this.forget(fd)
    this.close(fd)
  }

  /** Ends the loop, and closes the descriptors that are still watched. */
  end(): void {
    this.#watchers.forEach((watcher, fd) => {
      if (watcher) this.close(fd)
    })
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
      // The event may be one of an earlier descriptor of this number.
      if (this.#tags[fd] !== this.#epoll.tagAt(index)) continue
      this.#watchers[fd]?.ready(this.#epoll.eventsAt(index))
    }
  }

  /** A busy loop waits for the next events itself. Otherwise Node's loop waits for them. */
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
/** Many rounds save trips through Node's loop, but its timers have to be on time. */
const roundsPerTurn = 8
/** A loop with so many events in one turn is busy. */
const busyEvents = 32
/** Node's timers may be late by this time. */
const busyWaitMs = 1
