import type { ListeningSocket } from '../../../kernel/sockets/listening.js'
import { hostPort } from '../../../state/ip.js'
import { missingPlace, ownerText, type Difference } from '../../difference.js'
import type { Place } from '../../../kernel/place.js'
import type { LinkAddresses } from '../../../kernel/link-addresses.js'
import { needsDevice } from './address-portals.js'
import type { UserspacePlan } from '../plan.js'

/** The place of an address, and of the listeners on it. */
export function placeAt(ip: string): Place {
  return { kind: 'address', name: ip }
}

/**
 * For a machine without rules: the addresses and listeners that it lacks, and the addresses that it
 * has in excess. Listeners are left out where `sockets` is undefined.
 */
export async function addressDifferences(
  plan: UserspacePlan,
  link: Pick<LinkAddresses, 'ours' | 'foreign'>,
  sockets: readonly ListeningSocket[] | undefined,
): Promise<readonly Difference[]> {
  const ours = await link.ours(plan.family)
  const planned = [...plan.services.values()].flatMap(({ addresses }) => addresses)
  const present = new Set([...ours, ...(await link.foreign(plan.family, planned))])
  const listening = new Set(
    sockets?.map(({ protocol, ip, port }) =>
      listenerText({ protocol: protocol.toUpperCase(), address: ip, port }),
    ),
  )
  const wanted = new Set<string>()
  const differences: Difference[] = []
  for (const { key, addresses, listeners } of plan.services.values()) {
    const owner = ownerText(key)
    for (const ip of addresses) {
      wanted.add(ip)
      if (needsDevice(ip) && !present.has(ip)) differences.push(missingPlace(placeAt(ip), owner))
    }
    for (const { spec } of sockets ? listeners : []) {
      const expected = listenerText(spec)
      if (listening.has(expected)) continue
      differences.push({ place: placeAt(spec.address), expected, found: undefined, owner })
    }
  }
  for (const ip of ours) {
    if (wanted.has(ip)) continue
    const found = 'the address'
    differences.push({ place: placeAt(ip), expected: undefined, found, owner: '' })
  }
  return differences
}

/** The same text for a planned listener and for a socket that listens. */
export function listenerText(listener: {
  readonly protocol: string
  readonly address: string
  readonly port: number
}): string {
  return `listen ${listener.protocol} ${hostPort(listener.address, listener.port)}`
}
