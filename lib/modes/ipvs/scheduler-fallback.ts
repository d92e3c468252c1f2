import type { IpFamily } from '../../state/ip.js'
import type { Log } from '../mode.js'
import { schedulerFlagsOf } from './names.js'
import { serverText, type VirtualServer } from './resource.js'

/**
 * Replaces schedulers that this kernel does not have. A Service that chose such a scheduler gets
 * the node's scheduler, with a warning. Otherwise it would have no virtual server at all. The node's
 * scheduler is tried at the start, but the configuration may change it to one that is missing.
 */
export class SchedulerFallback {
  readonly #log: Log
  /** By family, because the families are compared with the kernel at different times. */
  readonly #missing: Readonly<Record<IpFamily, Map<string, string>>> = {
    IPv4: new Map(),
    IPv6: new Map(),
  }

  constructor(log: Log) {
    this.#log = log
  }

  /** The server with a scheduler that the kernel has, as far as known. */
  effective(server: VirtualServer): VirtualServer {
    const instead = this.#missing[server.family].get(server.scheduler)
    return instead === undefined ? server : withScheduler(server, instead)
  }

  /**
   * Called when the kernel refuses a scheduler. Returns the server with another, if there is one.
   */
  replace(server: VirtualServer, ofNode: string): VirtualServer | undefined {
    const instead = server.scheduler === ofNode ? 'rr' : ofNode
    if (server.scheduler === instead) return undefined
    const missing = this.#missing[server.family]
    if (!missing.has(server.scheduler)) {
      missing.set(server.scheduler, instead)
      this.#log.warn(
        { server: serverText(server), scheduler: server.scheduler, instead },
        `no kernel module ip_vs_${server.scheduler}, another scheduler is used`,
      )
    }
    return withScheduler(server, instead)
  }

  /** Forgets what is missing: a module may have been loaded since. */
  forget(family: IpFamily): void {
    this.#missing[family].clear()
  }
}

function withScheduler(server: VirtualServer, scheduler: string): VirtualServer {
  return { ...server, scheduler, schedulerFlags: schedulerFlagsOf(scheduler) }
}
