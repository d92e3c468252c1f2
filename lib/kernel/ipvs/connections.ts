import { readFileSync } from 'node:fs'
import { ifPossible } from '../../errors.js'
import { addressText } from '../addresses.js'
import { hostPort } from '../../state/ip.js'

/** One connection that IPVS holds; each end as `ip:port`. */
interface IpvsConnection {
  readonly protocol: string
  readonly client: string
  readonly virtual: string
  readonly real: string
  /** Such as `ESTABLISHED`. */
  readonly state: string
}

/** The connections of this network namespace; none where there is no IPVS. */
export function listIpvsConnections(): readonly IpvsConnection[] {
  return parseIpvsConnections(ifPossible(() => readFileSync('/proc/net/ip_vs_conn', 'utf8')) ?? '')
}

/** The TCP connections that are open; each as `client virtual`. */
export function openInIpvs(): ReadonlySet<string> {
  const open = listIpvsConnections().filter(
    ({ protocol, state }) => protocol === 'TCP' && state === 'ESTABLISHED',
  )
  return new Set(open.map(({ client, virtual }) => `${client} ${virtual}`))
}

/** Reads `TCP 0AF4010A 9C41 0A60000A 0050 0AF40115 1F90 ESTABLISHED     899`; IPv6 in full, with colons. */
export function parseIpvsConnections(text: string): readonly IpvsConnection[] {
  return text.split('\n').flatMap((line) => {
    const [protocol = '', ...fields] = line.trim().split(/\s+/)
    const [client, virtual, real] = [0, 2, 4].map((at) => endOf(fields[at], fields[at + 1]))
    const state = fields[6]
    if (!client || !virtual || !real || state === undefined) return []
    return [{ protocol, client, virtual, real, state }]
  })
}

function endOf(address = '', port = ''): string | undefined {
  const digits = address.replaceAll(':', '')
  const isV4 = digits.length === 8
  if (!/^[\dA-Fa-f]+$/.test(digits) || !(isV4 || digits.length === 32)) return undefined
  const bytes = Buffer.from(digits, 'hex')
  return hostPort(addressText(isV4 ? 'IPv4' : 'IPv6', bytes), Number.parseInt(port, 16))
}
