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
  const [value = '', second = ''] = values
  const not = isNot ? 'not ' : ''
  switch (name) {
    case '-s':
      return [`${not}from ${value}`]
    case '-d':
      return [`${not}to ${value}`]
    case '-i':
      return [`${not}coming in on ${value}`]
    case '-p': {
      const port = all.find((each) => each.name === '--dport')?.values[0]
      return [value.toUpperCase() + (port === undefined ? '' : ` port ${port}`)]
    }
    case '--src-type':
      return [isNot ? 'not sent by this node itself' : 'sent by this node itself']
    case '--dst-type':
      return [isNot ? 'not for an address of this node' : 'for an address of this node']
    case '--ctstate':
      return [stateWords(value, isNot)]
    case '--mark':
      return [isNot ? 'not marked' : 'marked']
    case '--probability':
      return [`by chance ${percent(Number(value))} of the packets that reach this rule`]
    case '--every':
      return [`the next of every ${value} packets that reach this rule`]
    case '--rcheck':
      return [`from a client of the last ${valueOf('--seconds', all)} s`]
    case '--set':
      return ['(and the sender is remembered)']
    case '--bytecode':
      return [programWords(value)]
    case '--nfacct-name':
      return [`counted as ${value}`]
    case '--match-set':
      return [`${not}in set ${value} by ${dimensionWords(second)}`]
    case '--src-range':
    case '--dst-range':
      return [`${not}${name === '--src-range' ? 'from' : 'to'} ${value}`]
    default:
      return silent.has(name) ? [] : undefined
  }
}

/** Options that the words of another option include, or that mean nothing by themselves. */
const silent: ReadonlySet<string> = new Set([
  ...['--dport', '--mode', '--packet', '--seconds', '--reap', '--name'],
])

function programWords(bytecode: string): string {
  return isSourceHash(bytecode)
    ? "for this part of all clients, by a hash of the client's address"
    : 'whose source and destination are the same address'
}

function valueOf(option: string, all: readonly RuleOption[]): string {
  return all.find((each) => each.name === option)?.values[0] ?? ''
}

function stateWords(states: string, isNot: boolean): string {
  if (states === 'NEW') return 'the first packet of a connection'
  if (states === 'INVALID') return 'packets of no connection that the kernel knows'
  if (states === 'DNAT') return 'whose destination was rewritten'
  if (states === 'RELATED,ESTABLISHED') return 'packets of a connection that was let in'
  return `${isNot ? 'not ' : ''}of a connection in state ${states}`
}

const dimensions: Readonly<Record<string, string>> = {
  'dst,dst': 'destination and port',
  'dst,dst,src': 'destination, port and source',
  dst: 'destination',
}

function dimensionWords(text: string): string {
  return dimensions[text] ?? text
}
