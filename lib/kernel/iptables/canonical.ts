import { bitsOf, parseCidr, parseIp } from '../../state/ip.js'
import { argumentsOf, optionsOf, splitArguments, type RuleOption } from './arguments.js'

/** A text that two rules share exactly when they are the same to the kernel. */
export function canonicalRule(text: string): string {
  return argumentsOf(canonicalOptions(text)).join('\u0000')
}

/** Whether two texts are the same rule to the kernel. */
export function isSameRule(a: string, b: string): boolean {
  return a === b || canonicalRule(a) === canonicalRule(b)
}

/**
 * The options of a rule in one form. The tools print some options differently from how they take
 * them, add defaults, and round probabilities.
 */
export function canonicalOptions(text: string): readonly RuleOption[] {
  const options = optionsOf(splitArguments(text)).flatMap(canonicalOption)
  const last = options.at(-1)
  const isPlainReject = last?.name === '-j' && last.values[0] === 'REJECT'
  return isPlainReject ? [...options, option('--reject-with', 'default')] : options
}

function canonicalOption(given: RuleOption): readonly RuleOption[] {
  // The name may be any text, also the name of a method.
  const rewrite = Object.hasOwn(rewrites, given.name) ? rewrites[given.name] : undefined
  if (!rewrite) return [given]
  const [value = ''] = given.values
  const made = rewrite(value)
  // An option that matches all addresses is left out. Its negation stays, because it matches none.
  if (made.length === 0 && given.isNot) return [given]
  return made.map((one) => ({ ...one, isNot: given.isNot }))
}

const option = (name: string, value: string): RuleOption => ({
  name,
  values: [value],
  isNot: false,
})

const hex = (value: string) => `0x${Number(value).toString(16)}`

const marks = (value: string) => value.split('/').map(hex).join('/')

const defaultRejects = ['icmp-port-unreachable', 'icmp6-port-unreachable', 'port-unreach']

const rewrites: Readonly<Record<string, (value: string) => readonly RuleOption[]>> = {
  '-s': (value) => range('-s', value),
  '-d': (value) => range('-d', value),
  '-p': (value) => [option('-p', value === 'icmpv6' ? 'ipv6-icmp' : value)],
  '--or-mark': (value) => [option('--set-xmark', `${hex(value)}/${hex(value)}`)],
  '--xor-mark': (value) => [option('--set-xmark', `${hex(value)}/0x0`)],
  '--set-xmark': (value) => [option('--set-xmark', marks(value))],
  '--mark': (value) => [option('--mark', marks(value))],
  // The kernel counts in parts of 2^31.
  '--probability': (value) => [
    option('--probability', String(Math.round(Number(value) * 2 ** 31))),
  ],
  '--ctstate': (value) => [option('--ctstate', value.split(',').sort().join())],
  '--reject-with': (value) => [
    option('--reject-with', defaultRejects.includes(value) ? 'default' : value),
  ],
  // The defaults of `recent`: it stores the source address as a whole.
  '--rsource': () => [],
  '--mask': (value) => (isWholeMask(value) ? [] : [option('--mask', value)]),
}

const isWholeMask = (value: string) =>
  value === '255.255.255.255' || value === 'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'

/**
 * One form for an address and for a range of one address. No option for the range of all addresses.
 */
function range(name: string, text: string): readonly RuleOption[] {
  const ip = parseIp(text)
  if (ip) return [option(name, `${ip.text}/${bitsOf(ip.family)}`)]
  const [address = '', mask = ''] = text.split('/').map((part) => parseIp(part)?.text)
  if (address !== '' && mask !== '') return [option(name, `${address}/${mask}`)]
  const cidr = parseCidr(text)
  if (cidr?.prefix === 0) return []
  return [option(name, cidr?.text ?? text)]
}
