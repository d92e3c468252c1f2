import type { Log } from '../mode.js'
import { schedulerFlagsOf } from './names.js'
import { serverText, type VirtualServer } from './resource.js'

/**
 * A Service may choose a scheduler whose module this kernel does not have. It then gets the
 * node's scheduler instead, with a warning, rather than no virtual server at all.
 */
export class SchedulerFallback {
  readonly #log: Log
  readonly #missing = new Map<string, string>()

  constructor(log: Log) {
    this.#log = log
  }

  /** The server as the kernel can have it. */
  effective(server: VirtualServer): VirtualServer {
    const instead = this.#missing.get(server.scheduler)
    return instead === undefined ? server : withScheduler(server, instead)
  }

  /** The kernel refused this server's scheduler: the server with another, if there is one. */
  replace(server: VirtualServer, instead: string): VirtualServer | undefined {
    if (server.scheduler === instead) return undefined
    if (!this.#missing.has(server.scheduler)) {
      this.#missing.set(server.scheduler, instead)
      this.#log.warn(
        { server: serverText(server), scheduler: server.scheduler, instead },
        `no kernel module ip_vs_${server.scheduler}, the scheduler is replaced`,
      )
    }
    return withScheduler(server, instead)
  }

  /** The module may have been loaded since. */
  forget(): void {
    this.#missing.clear()
  }
}

function withScheduler(server: VirtualServer, scheduler: string): VirtualServer {
  return { ...server, scheduler, schedulerFlags: schedulerFlagsOf(scheduler) }
}
