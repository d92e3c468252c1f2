import { bitsOf, cidrContains, cidrOf, parseCidr, parseIp } from '../../state/ip.js'
import { conditionsOf, parseRule, runBytecode, type RuleSpec } from '../../kernel/iptables.js'
import type { IpSetContent, NodeSurroundings, Packet } from './packet.js'

export interface PlannedRule {
  readonly text: string
  /** The text with a number where the plan only names a port. */
  readonly numbered?: string
}

/** A rule with the tests that a walk applies. */
export interface WalkedRule {
  readonly text: string
  /** The parts as the plan names them, for people. */
  readonly shown: RuleSpec
  /** The parts with numbers for ports. */
  readonly spec: RuleSpec
  readonly tests: readonly Test[]
  /** Below 1 for `statistic`: the share of packets it takes. */
  readonly probability: number
}

type Test = (packet: Packet, node: NodeSurroundings) => boolean

/** Throws if an option is unknown, because a guess could explain a wrong way. */
export function walkedRule({ text, numbered = text }: PlannedRule): WalkedRule {
  const spec = parseRule(numbered)
  const tests: Test[] = []
  let probability = 1
  for (const { name, values, isNot } of conditionsOf(spec)) {
    const [value = '', sides = ''] = values
    if (name === '--probability') probability = Number(value)
    if (name === '--every') probability = 1 / Number(value)
    if (ignored.has(name)) continue
    const test = testMakers[name]?.(value, sides)
    if (!test) throw new RangeError(`explain rule ${text}: option ${name} is not known`)
    tests.push(isNot ? (packet, node) => !test(packet, node) : test)
  }
  return { text, shown: text === numbered ? spec : parseRule(text), spec, tests, probability }
}

/** Options of a match that have no test of their own. */
const ignored = new Set([
  ...['--mode', '--probability', '--every', '--packet', '--seconds', '--reap', '--name', '--set'],
  '--nfacct-name',
])

const testMakers: Readonly<Record<string, (value: string, sides: string) => Test>> = {
  '-s': (value) => inside(value, ({ source }) => source),
  '-d': (value) => inside(value, ({ destination }) => destination),
  '-i': (value) => (packet) => isInterface(packet.inInterface, value),
  '-p': (value) => (packet) => packet.protocol.toLowerCase() === value,
  '--dport': (value) => {
    const [from, to = from] = value.split(':').map(Number)
    return ({ port }) => port >= Number(from) && port <= Number(to)
  },
  '--ctstate': (value) => {
    const states = value.split(',')
    return ({ isDnated }) => states.includes('NEW') || (states.includes('DNAT') && isDnated)
  },
  '--mark': (value) => {
    const [wanted, mask] = value.split('/').map(Number)
    return ({ mark }) => (mark & Number(mask)) === Number(wanted)
  },
  '--src-type': () => (packet, node) => isLocal(packet.source, node),
  '--dst-type': () => (packet, node) => isLocal(packet.destination, node),
  '--src-range': (value) => inRange(value, ({ source }) => source),
  '--dst-range': (value) => inRange(value, ({ destination }) => destination),
  '--bytecode': (value) => (packet) => runBytecode(value, headerOf(packet)) !== 0,
  // The walk is for a new client, which is in no list yet.
  '--rcheck': () => () => false,
  '--match-set': (name, sides) => (packet, node) => {
    const set = node.ipSets?.get(name)
    return set !== undefined && isMember(set, packet, sides.split(','))
  },
}

/** The type of a set names the parts of its members; the sides say which address is looked up. */
function isMember(
  { type, members }: IpSetContent,
  { source, destination, protocol, port }: Packet,
  sides: readonly string[],
): boolean {
  const parts = (type.split(':')[1] ?? '').split(',')
  const address = (index: number) => (sides[index] === 'src' ? source : destination)
  // Sets that hold only ports have no protocol.
  if (parts.length === 1 && parts[0] === 'port') return members.has(String(port))
  const key = parts.map((part, index) =>
    part === 'port' ? `${protocol.toLowerCase()}:${port}` : address(index),
  )
  if (members.has(key.join())) return true
  if (parts.at(-1) !== 'net') return false
  const prefix = `${key.slice(0, -1).join()},`
  const ip = parseIp(key.at(-1) ?? '')
  return [...members].some((member) => {
    const cidr = member.startsWith(prefix) ? parseCidr(member.slice(prefix.length)) : undefined
    return cidr !== undefined && ip !== undefined && cidrContains(cidr, ip)
  })
}

function inside(text: string, of: (packet: Packet) => string): Test {
  const single = parseIp(text)
  const cidr = single ? cidrOf(single, bitsOf(single.family)) : parseCidr(text)
  return (packet) => {
    const ip = parseIp(of(packet))
    return cidr !== undefined && ip !== undefined && cidrContains(cidr, ip)
  }
}

/** All ranges of our rules hold a single address, written twice. */
function inRange(text: string, of: (packet: Packet) => string): Test {
  const [only] = text.split('-')
  return (packet) => of(packet) === only
}

function isInterface(name: string | undefined, pattern: string): boolean {
  if (name === undefined) return false
  return pattern.endsWith('+') ? name.startsWith(pattern.slice(0, -1)) : name === pattern
}

export function isLocal(address: string, node: NodeSurroundings): boolean {
  return address.startsWith('127.') || node.localAddresses.has(address)
}

/** A network header that holds only the addresses, for the BPF program of a rule. */
function headerOf({ family, source, destination }: Packet): Uint8Array {
  const header = new Uint8Array(40)
  const [start, bytes] = family === 'IPv4' ? [12, 4] : [8, 16]
  for (const [index, text] of [source, destination].entries()) {
    let value = parseIp(text)?.value ?? 0n
    for (let at = start + (index + 1) * bytes - 1; value > 0n; at--, value >>= 8n) {
      header[at] = Number(value & 0xffn)
    }
  }
  return header
}
