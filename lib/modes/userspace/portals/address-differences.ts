import type { ListeningSocket } from '../../../kernel/sockets/listening.js'
import { hostPort } from '../../../state/ip.js'
import { ownerText, wholeAddress, type Difference } from '../../difference.js'
import { needsDevice, ourAddresses, type AddressLinks } from './address-portals.js'
import type { UserspacePlan } from '../plan.js'

/** Where a listener is, in the words of `explain`, which marks the hop that is missing. */
export function placeAt(ip: string): string {
  return isAnyAddress(ip) ? 'any address of this machine' : `address ${ip} of this machine`
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
    const lacks = (ip: string, expected: string) =>
      differences.push({ where: placeAt(ip), expected, found: undefined, owner })
    for (const ip of addresses) {
      wanted.add(ip)
      if (needsDevice(ip) && !present.has(ip)) lacks(ip, wholeAddress)
    }
    for (const { spec } of listeners) {
      const at = listenerText(spec)
      if (!listening.has(at)) lacks(spec.address, at)
    }
  }
  for (const ip of await ourAddresses(links, plan.family)) {
    if (wanted.has(ip)) continue
    differences.push({ where: placeAt(ip), expected: undefined, found: wholeAddress, owner: '' })
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

export function isAnyAddress(ip: string): boolean {
  return ip === '0.0.0.0' || ip === '::'
}

/** Numbers of devices begin at 1. */
const noDevice = 0
