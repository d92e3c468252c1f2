import type { DesiredService, DesiredState } from '../../state/desired-state.js'
import type { IpFamily } from '../../state/ip.js'
import type { ServedChanges, ServedPort } from './messages.js'

/** Finds what has changed in the addresses of Services between two states. */
export class ServedPorts {
  readonly #last = new Map<IpFamily, DesiredState>()

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
      for (const [, service] of differences.added) set.push(servedPort(family, service))
      for (const [, now, old] of differences.changed) {
        if (!hasSameAddresses(now, old)) set.push(servedPort(family, now))
      }
      for (const [key] of differences.removed) removed.push(idOf(family, key))
    }
    return { set, removed, localAddresses }
  }
}

const idOf = (family: IpFamily, key: string) => `${family} ${key}`

function servedPort(family: IpFamily, service: DesiredService): ServedPort {
  const { key, portName, protocol, port, nodePort } = service
  const addresses = addressesOf(service)
  return { id: idOf(family, key), family, service: portName, protocol, port, addresses, nodePort }
}

const addressesOf = ({ clusterIp, externalIps, loadBalancerIps }: DesiredService) => [
  ...new Set([clusterIp, ...externalIps, ...loadBalancerIps]),
]

function hasSameAddresses(a: DesiredService, b: DesiredService): boolean {
  if (a.port !== b.port || a.nodePort !== b.nodePort) return false
  const [one, other] = [addressesOf(a), addressesOf(b)]
  return one.length === other.length && one.every((address, index) => address === other[index])
}
