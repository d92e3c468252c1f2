import { destinationsOf, endpointKeys } from './stale-flows.js'
import { messageOf } from '../errors.js'
import { readAnnotation } from '../state/annotations.js'
import { removalAnnotation } from '../state/connection-annotations.js'
import type { DesiredService, DesiredState } from '../state/desired-state.js'
import type { Conntrack } from '../kernel/conntrack.js'
import type { IpFamily } from '../state/ip.js'
import type { Log } from '../modes/mode.js'

interface DepartedFlowsOptions {
  readonly table: () => Pick<Conntrack, 'delete'>
  readonly log: Log
}

/**
 * Ends TCP connections some time after their endpoint left, where a Service asks for it. It deletes
 * the kernel's entry of the connection. The kernel then takes the next packet for the first of a new
 * connection and sends it to another endpoint, which answers with a reset. A client that sends
 * nothing, not even keep-alives, notices nothing.
 */
export class DepartedFlows {
  readonly #options: DepartedFlowsOptions
  readonly #states = new Map<IpFamily, DesiredState>()
  readonly #timers = new Map<string, NodeJS.Timeout>()

  constructor(options: DepartedFlowsOptions) {
    this.#options = options
  }

  /** The rules of this state are in the kernel now. */
  applied(state: DesiredState): void {
    const { family, services } = state
    const before = this.#states.get(family)
    this.#states.set(family, state)
    if (!before) return
    for (const [, now, was] of services.since(before.services).changed) {
      if (now.protocol === 'TCP') this.#changed(family, now, was)
    }
  }

  #changed(family: IpFamily, now: DesiredService, was: DesiredService): void {
    const resetAfterMs = readAnnotation(now.options, removalAnnotation)?.resetAfterMs
    const here = endpointKeys(now)
    for (const endpoint of new Set([...endpointKeys(was), ...here])) {
      const id = `${family} ${now.key} ${endpoint}`
      if (resetAfterMs === undefined || here.has(endpoint)) {
        clearTimeout(this.#timers.get(id))
        this.#timers.delete(id)
      } else if (!this.#timers.has(id)) {
        const end = () => {
          this.#timers.delete(id)
          void this.#end(family, now, endpoint)
        }
        this.#timers.set(id, setTimeout(end, resetAfterMs).unref())
      }
    }
  }

  async #end(family: IpFamily, left: DesiredService, endpoint: string): Promise<void> {
    const { log, table } = this.#options
    const state = this.#states.get(family)
    const service = state?.services.get(left.key) ?? left
    const nodeAddresses = state?.node.nodePorts.addresses ?? []
    const destinations = new Set(destinationsOf(service, nodeAddresses))
    const fields = { family, service: left.portName, endpoint }
    try {
      const { deleted } = await table().delete(family, {
        protocol: 'TCP',
        isStale: ({ destination, answeredBy }) =>
          answeredBy === endpoint && destinations.has(destination),
      })
      if (deleted > 0)
        log.info({ ...fields, deleted }, 'ended connections to an endpoint that left')
    } catch (error) {
      const warning = 'connections to an endpoint that left could not be ended'
      log.warn({ ...fields, error: messageOf(error) }, warning)
    }
  }
}
