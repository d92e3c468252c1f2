import type { ListeningSocket } from '../../kernel/sockets/listening.js'
import { hostPort } from '../../state/ip.js'
import { ownerText, type Difference } from '../difference.js'
import { needsDevice, ourAddresses, type AddressLinks } from './address-portals.js'
import type { UserspacePlan } from './plan.js'

/** In the words of `explain`, which marks the hop that is missing. */
const where = 'address of this machine'

/** Where Services are served without rules: what this machine has to answer to, and whether it does. */
export async function addressDifferences(
  plan: UserspacePlan,
  links: Pick<AddressLinks, 'addresses' | 'find'>,
  sockets: readonly ListeningSocket[],
): Promise<readonly Difference[]> {
  const present = new Set(await links.addresses(plan.family, { except: noDevice }))
  const listening = new Set(
    sockets.map(({ protocol, ip, port }) => `${protocol.toUpperCase()} ${hostPort(ip, port)}`),
  )
  const wanted = new Set<string>()
  const differences: Difference[] = []
  for (const { key, addresses, listeners } of plan.services.values()) {
    const owner = ownerText(key)
    const lacks = (expected: string) =>
      differences.push({ where, expected, found: undefined, owner })
    for (const ip of addresses) {
      wanted.add(ip)
      if (needsDevice(ip) && !present.has(ip)) lacks(`the address ${ip}`)
    }
    for (const { spec } of listeners) {
      const at = `${spec.protocol} ${hostPort(spec.address, spec.port)}`
      if (!listening.has(at)) lacks(`listen ${at}`)
    }
  }
  for (const ip of await ourAddresses(links, plan.family)) {
    if (wanted.has(ip)) continue
    differences.push({ where, expected: undefined, found: `the address ${ip}`, owner: '' })
  }
  return differences
}

/** Devices are counted from 1. */
const noDevice = 0
