/**
 * Addresses and CIDRs as Kubernetes writes them: no leading zeros in IPv4 and no zones. An
 * IPv4-mapped IPv6 address (`::ffff:10.0.0.1`) is read as the IPv4 address in it. The text of an
 * address is canonical, so equal addresses are equal strings.
 */

export const ipFamilies = ['IPv4', 'IPv6'] as const
export type IpFamily = (typeof ipFamilies)[number]

export interface Ip {
  readonly family: IpFamily
  /** Canonical: dotted IPv4, or RFC 5952 IPv6. */
  readonly text: string
  /** 4 or 16 bytes, as a number. */
  readonly value: bigint
}

export interface Cidr {
  readonly family: IpFamily
  /** Canonical, host bits cleared: `10.0.0.0/8`. */
  readonly text: string
  readonly network: bigint
  readonly prefix: number
}

const mappedPrefix = 0xffffn << 32n

export function parseIp(text: string): Ip | undefined {
  const v4 = parseIpv4(text)
  if (v4 !== undefined) return ipOf('IPv4', v4)
  const v6 = parseIpv6(text)
  if (v6 === undefined) return undefined
  if (v6 >> 32n === 0xffffn) return ipOf('IPv4', v6 - mappedPrefix)
  return ipOf('IPv6', v6)
}

export function parseCidr(text: string): Cidr | undefined {
  const slash = text.indexOf('/')
  if (slash < 0) return undefined
  const ip = parseIp(text.slice(0, slash))
  const digits = text.slice(slash + 1)
  if (!ip || !/^(0|[1-9]\d{0,2})$/.test(digits)) return undefined
  // All of Kubernetes counts the 96 bits before the IPv4 address in a mapped one, too.
  const prefix = Number(digits) - (ip.family === 'IPv4' && text.includes(':') ? 96 : 0)
  if (prefix < 0 || prefix > bitsOf(ip.family)) return undefined
  return cidrOf(ip, prefix)
}

/** The CIDRs of one family among texts, of which any may be wrong. */
export function cidrsOf(family: IpFamily, texts: readonly string[]): readonly Cidr[] {
  return texts
    .map(parseCidr)
    .filter((cidr) => cidr !== undefined)
    .filter((cidr) => cidr.family === family)
}

/**
 * An address of an object. Old clusters have IPv4 addresses and prefixes with leading zeros, and
 * everything in Kubernetes reads those as decimal numbers. The kernel's programs would not.
 */
export const parseObjectIp = (text: string) => parseIp(text) ?? parseIp(withoutZeros(text))

/** A CIDR of an object; see {@link parseObjectIp}. */
export const parseObjectCidr = (text: string) => parseCidr(text) ?? parseCidr(withoutZeros(text))

function withoutZeros(text: string): string {
  return text.length > 64 ? text : text.replace(/(^|[./])0+(?=\d)/g, '$1')
}

/** The CIDR of that prefix length around an address. */
export function cidrOf(ip: Ip, prefix: number): Cidr {
  const hostBits = BigInt(bitsOf(ip.family) - prefix)
  const network = (ip.value >> hostBits) << hostBits
  return {
    family: ip.family,
    text: `${formatIp(ip.family, network)}/${prefix}`,
    network,
    prefix,
  }
}

export function cidrContains(cidr: Cidr, ip: Ip): boolean {
  if (cidr.family !== ip.family) return false
  const hostBits = BigInt(bitsOf(cidr.family) - cidr.prefix)
  return ip.value >> hostBits === cidr.network >> hostBits
}

export function familyOf(text: string): IpFamily | undefined {
  return parseIp(text)?.family
}

export function bitsOf(family: IpFamily): 32 | 128 {
  return family === 'IPv4' ? 32 : 128
}

export function isLoopback(ip: Pick<Ip, 'family' | 'value'>): boolean {
  return ip.family === 'IPv4' ? ip.value >> 24n === 127n : ip.value === 1n
}

/** Whether a text is an address, and not one that only this machine reaches. */
export function isNotLoopback(text: string): boolean {
  const ip = parseIp(text)
  return ip !== undefined && !isLoopback(ip)
}

export function isLinkLocal(ip: Ip): boolean {
  return ip.family === 'IPv4' ? ip.value >> 16n === 0xa9fen : ip.value >> 118n === 0x3fan
}

/** Whether an address means something only together with the name of a device. */
export function isScoped(text: string): boolean {
  const ip = parseIp(text)
  return ip?.family === 'IPv6' && isLinkLocal(ip)
}

export function isMulticast(ip: Ip): boolean {
  return ip.family === 'IPv4' ? ip.value >> 28n === 0xen : ip.value >> 120n === 0xffn
}

export function isUnspecified(ip: Ip): boolean {
  return ip.value === 0n
}

/** `10.0.0.1:80` or `[fd00::1]:80`. */
export function hostPort(ip: string, port: number | string): string {
  return ip.includes(':') ? `[${ip}]:${port}` : `${ip}:${port}`
}

/** The address in `ip:port` or `[ip]:port`; empty if the text has none. */
export function addressOf(place: string): string {
  return withoutBrackets(place.slice(0, Math.max(0, place.lastIndexOf(':'))))
}

/** The host of a URL or of `[ip]:port` has an IPv6 address in brackets. */
export function withoutBrackets(host: string): string {
  return host.replace(/^\[|\]$/g, '')
}

export interface HostPort {
  readonly host: string
  readonly port: number
}

/** `10.0.0.1:80` or `[::1]:80`; the host must be an address, the port 1-65535. */
export function parseHostPort(text: string): HostPort | undefined {
  const match = /^(?:\[([^\]]*)\]|([^:[\]]*)):(\d{1,5})$/.exec(text)
  const host = parseIp(match?.[1] ?? match?.[2] ?? '')
  const port = Number(match?.[3])
  return host && port >= 1 && port <= 65535 ? { host: host.text, port } : undefined
}

/** Adds the port to an address without one. Any other text is returned as it is. */
export function appendPort(address: string, port: number): string {
  const ip = parseIp(address)
  return ip ? hostPort(ip.text, port) : address
}

export interface PortRange {
  readonly from: number
  readonly to: number
}

/** `a-b`, `a+n` or a single port. Empty and `0` mean that the kernel chooses. */
export function parsePortRange(text: string): PortRange | 'any' | undefined {
  const trimmed = text.trim()
  if (trimmed === '') return 'any'
  const match = /^(\d{1,5})(?:([-+])(\d{1,5}))?$/.exec(trimmed)
  if (!match) return undefined
  const from = Number(match[1])
  const other = Number(match[3] ?? from)
  // kube-proxy limits the sum, too.
  const to = match[2] === '+' ? Math.min(from + other, 65535) : other
  if (from > 65535 || to > 65535 || from > to) return undefined
  return from === 0 && to === 0 ? 'any' : { from, to }
}

export function formatIp(family: IpFamily, value: bigint): string {
  return family === 'IPv4' ? formatIpv4(Number(value)) : formatIpv6(value)
}

function ipOf(family: IpFamily, value: bigint): Ip {
  return { family, text: formatIp(family, value), value }
}

function parseIpv4(text: string): bigint | undefined {
  if (text.length < 7 || text.length > 15) return undefined
  let value = 0
  let octet = -1
  let octets = 0
  let digits = 0
  for (let index = 0; index <= text.length; index++) {
    const code = index < text.length ? text.charCodeAt(index) : 46
    if (code === 46) {
      if (digits === 0 || octets === 4) return undefined
      value = value * 256 + octet
      octets++
      octet = -1
      digits = 0
    } else if (code >= 48 && code <= 57) {
      if (digits === 1 && octet === 0) return undefined
      octet = (digits === 0 ? 0 : octet * 10) + code - 48
      digits++
      if (octet > 255) return undefined
    } else return undefined
  }
  return octets === 4 ? BigInt(value) : undefined
}

function parseIpv6(text: string): bigint | undefined {
  if (text.length < 2 || text.length > 45) return undefined
  const halves = text.split('::')
  if (halves.length > 2) return undefined
  const head = parseGroups(halves[0] ?? '', halves.length === 1)
  const tail = halves.length === 2 ? parseGroups(halves[1] ?? '', true) : []
  if (!head || !tail) return undefined
  const missing = 8 - head.length - tail.length
  if (halves.length === 2 ? missing < 1 : missing !== 0) return undefined
  let value = 0n
  for (const group of [...head, ...Array<number>(missing).fill(0), ...tail]) {
    value = (value << 16n) | BigInt(group)
  }
  return value
}

/** 16-bit groups of one side of `::`; the last may be dotted IPv4 where `mayEndDotted`. */
function parseGroups(text: string, mayEndDotted: boolean): number[] | undefined {
  if (text === '') return []
  const groups: number[] = []
  const parts = text.split(':')
  for (const [index, part] of parts.entries()) {
    if (mayEndDotted && index === parts.length - 1 && part.includes('.')) {
      const v4 = parseIpv4(part)
      if (v4 === undefined) return undefined
      groups.push(Number(v4 >> 16n), Number(v4 & 0xffffn))
    } else if (/^[0-9a-fA-F]{1,4}$/.test(part)) groups.push(Number.parseInt(part, 16))
    else return undefined
  }
  return groups
}

function formatIpv4(value: number): string {
  return [24, 16, 8, 0].map((shift) => (value >>> shift) & 255).join('.')
}

function formatIpv6(value: bigint): string {
  const groups: number[] = []
  for (let shift = 112n; shift >= 0n; shift -= 16n) groups.push(Number((value >> shift) & 0xffffn))
  let start = -1
  let length = 1
  for (let index = 0; index < 8; index++) {
    let end = index
    while (end < 8 && groups[end] === 0) end++
    if (end - index > length) {
      start = index
      length = end - index
    }
  }
  const hex = (part: number[]) => part.map((group) => group.toString(16)).join(':')
  if (start < 0) return hex(groups)
  return `${hex(groups.slice(0, start))}::${hex(groups.slice(start + length))}`
}
