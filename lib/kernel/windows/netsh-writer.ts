import type { NetworkInterfaceInfo } from 'node:os'
import { KernelError } from '../../errors.js'
import { bitsOf, parseIp, type IpFamily } from '../../state/ip.js'
import type { Run } from '../command.js'
import type { AddressWriter, SeenAddress } from './windows-addresses.js'

interface NetshDeps {
  readonly run: Run
  /** The path of netsh.exe. */
  readonly program: string
  /**
   * Addresses are read back from Windows itself, because netsh prints in the language of the node.
   */
  readonly interfaces: () => NodeJS.Dict<NetworkInterfaceInfo[]>
}

/**
 * Uses `netsh`, where iphlpapi.dll cannot be called. The exit code of netsh says little, and its
 * words depend on the language, so nothing here relies on them.
 */
export function openNetshWriter(
  link: string,
  { run, program, interfaces }: NetshDeps,
): AddressWriter {
  const netsh = async (action: string, args: readonly string[]) => {
    const { code, stdout, stderr } = await run(program, ['interface', ...args])
    if (code === 0) return
    const said = `${stdout}${stderr}`.trim()
    // Windows numbers the reasons in every language, but netsh does not pass the number on.
    throw new KernelError('failed', `${action}: netsh ended with ${code}: ${said}`)
  }
  return {
    name: 'netsh',
    read: (family) => Promise.resolve().then(() => addressesOf(interfaces()[link] ?? [], family)),
    add: (family, ip) => {
      const place =
        family === 'IPv4'
          ? [`name=${link}`, `address=${ip}`, 'mask=255.255.255.255']
          : [`interface=${link}`, `address=${ip}/128`]
      const how = ['skipassource=true', 'store=active']
      return netsh(`add address ${ip}`, [verbs[family], 'add', 'address', ...place, ...how])
    },
    remove: (family, ip) => {
      const name = family === 'IPv4' ? 'name' : 'interface'
      const place = [`${name}=${link}`, `address=${ip}`, 'store=active']
      return netsh(`remove address ${ip}`, [verbs[family], 'delete', 'address', ...place])
    },
  }
}

const verbs = { IPv4: 'ipv4', IPv6: 'ipv6' } as const

function addressesOf(
  infos: readonly NetworkInterfaceInfo[],
  family: IpFamily,
): readonly SeenAddress[] {
  return infos.flatMap(({ address, cidr }) => {
    const ip = parseIp(address.replace(/%.*/, ''))
    if (ip?.family !== family) return []
    return [{ ip: ip.text, isSingle: cidr?.endsWith(`/${bitsOf(family)}`) === true }]
  })
}
