import type { NetworkInterfaceInfo } from 'node:os'
import type { Run } from '../../lib/kernel/command.js'
import { rowBytes, type IpHelper } from '../../lib/kernel/windows/ip-helper.js'

const luids: Readonly<Record<string, bigint>> = { hns: 0x6000001000000n, other: 0x6000002000000n }

/** The addresses of a Windows node in memory, and every call that changes them. */
export class FakeWindows {
  /** By link and address: the length of the prefix. */
  readonly on = new Map([
    ['hns', new Map<string, number>()],
    ['other', new Map([['192.0.2.1', 24]])],
  ])
  /** Addresses that the node's own connections may take as their source. */
  readonly sources = new Set<string>()
  readonly calls: string[] = []
  /** How the next changes go wrong. */
  fault: 'none' | 'denied' | 'lies' | 'adds but fails' = 'none'
  /** Addresses that no socket can use yet, and how many more attempts fail. */
  readonly tentative = new Map<string, number>()

  canBind = (ip: string): Promise<boolean> => {
    const left = this.tentative.get(ip) ?? 0
    if (left > 0) this.tentative.set(ip, left - 1)
    const isThere = [...this.on.values()].some((addresses) => addresses.has(ip))
    return Promise.resolve(isThere && left === 0)
  }

  listed = () => [...(this.on.get('hns')?.keys() ?? [])]

  /** Plays iphlpapi.dll. It reads and writes rows by their offsets only. */
  ipHelper(): IpHelper {
    const change = (row: Uint8Array, isAdd: boolean): number => {
      const { ip, link, prefix } = readRow(row)
      this.calls.push(`${isAdd ? 'create' : 'delete'} ${link} ${ip}/${prefix} ${flagsOf(row)}`)
      if (this.fault === 'denied') return 5
      if (this.fault === 'lies') return 0
      const addresses = this.on.get(link)
      if (!addresses) return 1168
      if (addresses.has(ip) === isAdd) return isAdd ? 5010 : 1168
      this.#change(link, ip, isAdd)
      return this.fault === 'adds but fails' ? 31 : 0
    }
    return {
      luidOf: (name) => {
        const luid = this.on.has(name) ? luids[name] : undefined
        return luid === undefined ? { status: 87, luid: 0n } : { status: 0, luid }
      },
      initialize: (row) => row.fill(0xff),
      create: (row) => change(row, true),
      delete: (row) => change(row, false),
      table: (family) => {
        const rows = [...this.on].flatMap(([link, addresses]) =>
          [...addresses]
            .filter(([ip]) => ip.includes(':') === (family === 23))
            .map(([ip, prefix]) => writeRow(link, { ip, prefix, isSource: this.sources.has(ip) })),
        )
        return { status: rows.length === 0 ? 1168 : 0, rows: Buffer.concat(rows) }
      },
    }
  }

  netsh: Run = (file, args) => {
    this.calls.push([file, ...args].join(' '))
    const ended = (code: number, stdout = '') => Promise.resolve({ code, stdout, stderr: '' })
    if (this.fault === 'denied') return ended(1, 'The requested operation requires elevation.')
    if (this.fault === 'lies') return ended(0)
    const value = (name: string) =>
      args.find((arg) => arg.startsWith(`${name}=`))?.slice(name.length + 1)
    const link = value('name') ?? value('interface') ?? ''
    const [ip = ''] = (value('address') ?? '').split('/')
    const isAdd = args.includes('add')
    if (this.on.get(link)?.has(ip) === isAdd) return ended(1, 'Das Objekt ist bereits vorhanden.')
    this.#change(link, ip, isAdd)
    return ended(this.fault === 'adds but fails' ? 1 : 0)
  }

  interfaces = (): NodeJS.Dict<NetworkInterfaceInfo[]> =>
    Object.fromEntries(
      [...this.on].map(([link, addresses]) => [
        link,
        [...addresses].map(([ip, prefix]) => infoOf(ip, prefix)),
      ]),
    )

  #change(link: string, ip: string, isAdd: boolean): void {
    if (isAdd) this.on.get(link)?.set(ip, ip.includes(':') ? 128 : 32)
    else this.on.get(link)?.delete(ip)
  }
}

function infoOf(ip: string, prefix: number): NetworkInterfaceInfo {
  const rest = { netmask: '', mac: '', internal: false, cidr: `${ip}/${prefix}`, address: ip }
  return ip.includes(':') ? { ...rest, family: 'IPv6', scopeid: 0 } : { ...rest, family: 'IPv4' }
}

const ipv6 = { text: 'fd00::a', bytes: 'fd00000000000000000000000000000a' } as const

interface WindowsAddress {
  readonly ip: string
  readonly prefix: number
  readonly isSource: boolean
}

function writeRow(link: string, { ip, prefix, isSource }: WindowsAddress): Buffer {
  const row = Buffer.alloc(rowBytes)
  row.writeUInt16LE(ip.includes(':') ? 23 : 2, 0)
  if (ip === ipv6.text) row.write(ipv6.bytes, 8, 'hex')
  else Buffer.from(ip.split('.').map(Number)).copy(row, 4)
  row.writeBigUInt64LE(luids[link] ?? 0n, 32)
  row.writeUInt8(prefix, 60)
  row.writeUInt8(isSource ? 0 : 1, 61)
  return row
}

function readRow(row: Uint8Array) {
  const bytes = Buffer.from(row)
  const isIpv6 = bytes.readUInt16LE(0) === 23
  const ip = isIpv6
    ? bytes.toString('hex', 8, 24) === ipv6.bytes
      ? ipv6.text
      : '?'
    : [...bytes.subarray(4, 8)].join('.')
  const luid = bytes.readBigUInt64LE(32)
  const link = Object.entries(luids).find(([, of]) => of === luid)?.[0] ?? '?'
  return { ip, link, prefix: bytes.readUInt8(60) }
}

/** SkipAsSource, the state of duplicate detection, and the lifetime that the system filled in. */
function flagsOf(row: Uint8Array): string {
  const bytes = Buffer.from(row)
  return `skip=${bytes.readUInt8(61)} dad=${bytes.readUInt32LE(64)} valid=${bytes.readUInt32LE(52).toString(16)}`
}
