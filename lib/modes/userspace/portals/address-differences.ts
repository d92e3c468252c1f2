import type { ListeningSocket } from '../../../kernel/sockets/listening.js'
import { hostPort } from '../../../state/ip.js'
import { missingPlace, ownerText, type Difference } from '../../difference.js'
import type { Place } from '../../../kernel/place.js'
import { needsDevice, ourAddresses, type AddressLinks } from './address-portals.js'
import type { UserspacePlan } from '../plan.js'

/** Where a listener stands. */
export function placeAt(ip: string): Place {
  return { kind: 'address', name: ip }
}

/** Without rules: which addresses and listeners this machine lacks, and which it has in excess. */
export async function addressDifferences(
  plan: UserspacePlan,
  links: Pick<AddressLinks, 'addresses' | 'find'>,
  sockets: readonly ListeningSocket[],
): Promise<readonly Difference[]> {
  const present = new Set(await links.addresses(plan.family, { except: noDevice }))
  const listening = new Set(
    sockets.map(({ protocol, ip, port }) =>
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
    for (const { spec } of listeners) {
      const expected = listenerText(spec)
      if (listening.has(expected)) continue
      differences.push({ place: placeAt(spec.address), expected, found: undefined, owner })
    }
  }
  for (const ip of await ourAddresses(links, plan.family)) {
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

/** Numbers of devices begin at 1. */
const noDevice = 0
