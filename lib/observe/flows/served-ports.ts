import type { DesiredService, DesiredState } from '../../state/desired-state.js'
import type { IpFamily } from '../../state/ip.js'
import { isEqual } from '../../state/json.js'
import type { PresentEndpoints, ServedChanges, ServedPort } from './messages.js'

/** Finds what has changed in the addresses of Services between two states. */
export class ServedPorts {
  readonly #last = new Map<IpFamily, DesiredState>()
  /** Service ports that have changed since `takePresent`. */
  #changed = new Set<string>()

  /** The cost grows with the changes, not with the number of Services. */
  changes(states: readonly DesiredState[]): ServedChanges {
    const set: ServedPort[] = []
    const removed: string[] = []
    const localAddresses: (readonly [IpFamily, readonly string[]])[] = []
    for (const state of states) {
      const { family, services, node } = state
      const before = this.#last.get(family)
      this.#last.set(family, state)
      if (before?.node.localAddresses !== node.localAddresses) {
        localAddresses.push([family, node.localAddresses])
      }
      const differences = services.since(before?.services)
      for (const [key, service] of differences.added) {
        this.#changed.add(key)
        set.push(servedPort(family, service))
      }
      for (const [key, now, old] of differences.changed) {
        this.#changed.add(key)
        if (!hasSameAddresses(now, old)) set.push(servedPort(family, now))
      }
      for (const [key] of differences.removed) {
        this.#changed.add(key)
        removed.push(idOf(family, key))
      }
    }
    return { set, removed, localAddresses }
  }

  /** The endpoints of service ports that have changed since the last call. */
  takePresent(): readonly PresentEndpoints[] {
    const states = [...this.#last.values()]
    const present = [...this.#changed].flatMap((key) => {
      const all = states.flatMap(({ services }) => services.get(key) ?? [])
      const [first] = all
      if (!first) return []
      const { portName: service, protocol } = first
      const endpoints = new Set(all.flatMap(endpointsOf))
      return [{ service, protocol, endpoints: [...endpoints] }]
    })
    this.#changed = new Set()
    return present
  }
}

const idOf = (family: IpFamily, key: string) => `${family} ${key}`

function servedPort(family: IpFamily, service: DesiredService): ServedPort {
  const { key, portName, protocol, port, nodePort } = service
  const addresses = addressesOf(service)
  return { id: idOf(family, key), family, service: portName, protocol, port, addresses, nodePort }
}

/** Those that new connections may get, and those that keep the ones they have. */
const endpointsOf = ({ reachableEndpoints, servingEndpoints }: DesiredService) =>
  [...reachableEndpoints, ...servingEndpoints].map(({ key }) => key)

const addressesOf = ({ clusterIp, externalIps, loadBalancerIps }: DesiredService) => [
  ...new Set([clusterIp, ...externalIps, ...loadBalancerIps]),
]

function hasSameAddresses(a: DesiredService, b: DesiredService): boolean {
  const [one, other] = [a, b].map((each) => [each.port, each.nodePort, ...addressesOf(each)])
  return isEqual(one, other)
}
