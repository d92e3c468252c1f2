import { KernelError, type KernelErrorKind } from '../../errors.js'
import { bitsOf, type IpFamily } from '../../state/ip.js'
import { addressBytes, addressText } from '../addresses.js'
import type { AddressWriter, SeenAddress } from './windows-addresses.js'
import { rowBytes, type IpHelper } from './ip-helper.js'

/** Address families as Windows numbers them. */
const families = { IPv4: 2, IPv6: 23 } as const

/** Where the address of a SOCKADDR_INET begins. */
const addressAt = { IPv4: 4, IPv6: 8 } as const

/** Offsets in a MIB_UNICASTIPADDRESS_ROW. */
const at = { luid: 32, prefixLength: 60, skipAsSource: 61, duplicateDetection: 64 } as const

/** IpDadStatePreferred: nobody else on this link can have the address of a Service. */
const preferred = 4

const statusKinds: Readonly<Record<number, KernelErrorKind>> = {
  2: 'not-found',
  5: 'denied',
  50: 'unsupported',
  87: 'invalid',
  1168: 'not-found',
  5010: 'exists',
}

/**
 * Uses iphlpapi.dll. The node's own connections do not take an added address as their source
 * (SkipAsSource). An address ends with the interface or with Windows itself. Undefined when there is
 * no interface of this name.
 */
export function openIpHelperWriter(helper: IpHelper, link: string): AddressWriter | undefined {
  const { status, luid } = helper.luidOf(link)
  if (status !== 0) return undefined
  return {
    name: 'iphlpapi',
    read: (family) => Promise.resolve().then(() => addressesOf(helper, luid, family)),
    add: (family, ip) =>
      settled(helper.create(rowOf(helper, luid, family, ip)), `add address ${ip}`),
    remove: (family, ip) =>
      settled(helper.delete(rowOf(helper, luid, family, ip)), `remove address ${ip}`),
  }
}

function addressesOf(helper: IpHelper, luid: bigint, family: IpFamily): readonly SeenAddress[] {
  const { status, rows } = helper.table(families[family])
  if (status !== 0 && statusKinds[status] !== 'not-found') {
    throw errorOf(status, `list ${family} addresses`)
  }
  const seen: SeenAddress[] = []
  for (let start = 0; start + rowBytes <= rows.length; start += rowBytes) {
    if (rows.readBigUInt64LE(start + at.luid) !== luid) continue
    const ip = addressText(family, rows, start + addressAt[family])
    const isSingle = rows[start + at.prefixLength] === bitsOf(family)
    seen.push({ ip, isSingle, isSource: rows[start + at.skipAsSource] === 0 })
  }
  return seen
}

function rowOf(helper: IpHelper, luid: bigint, family: IpFamily, ip: string): Buffer {
  const row = Buffer.alloc(rowBytes)
  helper.initialize(row)
  row.writeUInt16LE(families[family], 0)
  row.set(addressBytes(ip) ?? [], addressAt[family])
  row.writeBigUInt64LE(luid, at.luid)
  row.writeUInt8(bitsOf(family), at.prefixLength)
  row.writeUInt8(1, at.skipAsSource)
  row.writeUInt32LE(preferred, at.duplicateDetection)
  return row
}

function settled(status: number, action: string): Promise<void> {
  return status === 0 ? Promise.resolve() : Promise.reject(errorOf(status, action))
}

function errorOf(status: number, action: string): KernelError {
  const kind = statusKinds[status] ?? 'failed'
  return new KernelError(kind, `${action}: iphlpapi: error ${status} of Windows (${kind})`)
}
