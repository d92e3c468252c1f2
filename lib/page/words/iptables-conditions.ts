import { isSourceHash, type RuleOption } from '../../kernel/iptables.js'
import { percent } from './words.js'

/**
 * The packets that the conditions of a rule select, in words. Empty: all packets; undefined: a
 * condition is unknown.
 */
export function conditionWords(conditions: readonly RuleOption[]): string | undefined {
  const words = conditions.map((condition) => wordsOf(condition, conditions))
  if (words.includes(undefined)) return undefined
  return words.flatMap((each) => each ?? []).join(', ')
}

function wordsOf(
  { name, values, isNot }: RuleOption,
  all: readonly RuleOption[],
): readonly string[] | undefined {
  if (silent.has(name)) return []
  const [value = '', second = ''] = values
  const words = wordsBy[name]?.({ value, second, not: isNot ? 'not ' : '', all })
  return words === undefined ? undefined : [words]
}

/** Options that the words of another option include, or that mean nothing by themselves. */
const silent: ReadonlySet<string> = new Set([
  ...['--dport', '--mode', '--packet', '--seconds', '--reap', '--name'],
])

interface Condition {
  readonly value: string
  readonly second: string
  /** `not `, or empty. */
  readonly not: string
  readonly all: readonly RuleOption[]
}

const wordsBy: Readonly<Record<string, ((condition: Condition) => string) | undefined>> = {
  '-s': ({ not, value }) => `${not}from ${value}`,
  '-d': ({ not, value }) => `${not}to ${value}`,
  '-i': ({ not, value }) => `${not}coming in on ${value}`,
  '-p': ({ value, all }) => {
    const port = valueOf('--dport', all)
    return value.toUpperCase() + (port === '' ? '' : ` port ${port}`)
  },
  '--src-type': ({ not }) => `${not}sent by this node itself`,
  '--dst-type': ({ not }) => `${not}for an address of this node`,
  '--ctstate': stateWords,
  '--mark': ({ not }) => `${not}marked`,
  '--probability': ({ value }) =>
    `by chance ${percent(Number(value))} of the packets that reach this rule`,
  '--every': ({ value }) => `the next of every ${value} packets that reach this rule`,
  '--rcheck': ({ all }) => `from a client of the last ${valueOf('--seconds', all)} s`,
  '--set': () => '(and the sender is remembered)',
  '--bytecode': ({ value }) => programWords(value),
  '--nfacct-name': ({ value }) => `counted as ${value}`,
  '--match-set': ({ not, value, second }) =>
    `${not}in set ${value} by ${dimensions[second] ?? second}`,
  '--src-range': ({ not, value }) => `${not}from ${value}`,
  '--dst-range': ({ not, value }) => `${not}to ${value}`,
}

function programWords(bytecode: string): string {
  return isSourceHash(bytecode)
    ? "for this part of all clients, by a hash of the client's address"
    : 'whose source and destination are the same address'
}

function valueOf(option: string, all: readonly RuleOption[]): string {
  return all.find((each) => each.name === option)?.values[0] ?? ''
}

function stateWords({ value: states, not }: Condition): string {
  if (states === 'NEW') return 'the first packet of a connection'
  if (states === 'INVALID') return 'packets of no connection that the kernel knows'
  if (states === 'DNAT') return 'whose destination was rewritten'
  if (states === 'RELATED,ESTABLISHED') return 'packets of a connection that was let in'
  return `${not}of a connection in state ${states}`
}

const dimensions: Readonly<Record<string, string>> = {
  'dst,dst': 'destination and port',
  'dst,dst,src': 'destination, port and source',
  dst: 'destination',
}
