import { formatIp, parseCidr, parseIp } from '../../state/ip.js'
import { splitArguments } from './rule.js'

/**
 * One form for rules that are the same to the kernel: the tools print some options in other words
 * than they take them, add defaults, and round probabilities.
 */
export function canonicalRule(text: string): string {
  const args = splitArguments(text)
  const out: string[] = []
  for (let index = 0; index < args.length; index++) {
    const option = args[index] ?? ''
    const value = args[index + 1] ?? ''
    const rewrite = rewrites[option]
    if (!rewrite) out.push(option)
    else {
      out.push(...rewrite(value))
      index++
    }
  }
  const at = out.indexOf('REJECT')
  if (at > 0 && out[at - 1] === '-j' && out.length === at + 1) out.push('--reject-with', 'default')
  // What an address is recognised by unless a rule says otherwise.
  return out.filter((part) => part !== '--rsource').join('\u0000')
}

const hex = (value: string) => `0x${Number(value).toString(16)}`

const marks = (value: string) => value.split('/').map(hex).join('/')

const defaultRejects = ['icmp-port-unreachable', 'icmp6-port-unreachable', 'port-unreach']

const rewrites: Readonly<Record<string, (value: string) => readonly string[]>> = {
  '-s': (value) => ['-s', range(value)],
  '-d': (value) => ['-d', range(value)],
  '-p': (value) => ['-p', value === 'icmpv6' ? 'ipv6-icmp' : value],
  '--or-mark': (value) => ['--set-xmark', `${hex(value)}/${hex(value)}`],
  '--xor-mark': (value) => ['--set-xmark', `${hex(value)}/0x0`],
  '--set-xmark': (value) => ['--set-xmark', marks(value)],
  '--mark': (value) => ['--mark', marks(value)],
  // The kernel counts in parts of 2^31.
  '--probability': (value) => ['--probability', Number(value).toFixed(6)],
  '--ctstate': (value) => ['--ctstate', value.split(',').sort().join()],
  '--reject-with': (value) => ['--reject-with', defaultRejects.includes(value) ? 'default' : value],
  '--mask': (value) => (isWholeMask(value) ? [] : ['--mask', value]),
}

const isWholeMask = (value: string) =>
  value === '255.255.255.255' || value === 'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'

function range(text: string): string {
  const ip = parseIp(text)
  if (ip) return `${ip.text}/${ip.family === 'IPv4' ? 32 : 128}`
  const cidr = parseCidr(text)
  return cidr ? `${formatIp(cidr.family, cidr.network)}/${cidr.prefix}` : text
}
