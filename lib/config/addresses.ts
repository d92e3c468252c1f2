import { hostPort, parseIp } from '../state/ip.js'

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
