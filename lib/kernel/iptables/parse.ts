import { argumentsOf, optionsOf, splitArguments, type RuleOption } from './arguments.js'
import { not, type Match, type Not, type RuleSpec } from './rule.js'

/**
 * Takes the text of a rule apart, as iptables-save prints it or {@link rule} writes it. Anybody may
 * have written the rule, so nothing is checked. Options that belong to no match and have no
 * field here, such as `-f`, come in a match without a name.
 */
export function parseRule(text: string): RuleSpec {
  const spec: { -readonly [K in keyof RuleSpec]: RuleSpec[K] } = {}
  const matches: { name: string; options: RuleOption[] }[] = []
  const options = optionsOf(splitArguments(text))
  for (const [index, option] of options.entries()) {
    const { name, values } = option
    const [value = ''] = values
    if (name === '-j' || name === '-g') {
      spec[name === '-j' ? 'jump' : 'goto'] = value
      const args = argumentsOf(options.slice(index + 1))
      if (args.length > 0) spec.jumpArgs = args
      break
    }
    // The name may be any text, also the name of a method.
    const field = Object.hasOwn(fields, name) ? fields[name] : undefined
    if (field !== undefined) spec[field] = option.isNot ? not(value) : value
    else if (name === '-m') matches.push({ name: value, options: [] })
    else {
      if (matches.length === 0) matches.push({ name: '', options: [] })
      matches.at(-1)?.options.push(option)
    }
  }
  const [first] = matches
  if (first?.name === 'comment') {
    spec.comment = first.options[0]?.values[0] ?? ''
    matches.shift()
  }
  if (matches.length > 0) {
    spec.matches = matches.map(({ name, options: own }) => ({ name, args: argumentsOf(own) }))
  }
  return spec
}

/** Options of the packet itself, by the field of a rule that holds their value. */
const fields: Readonly<Record<string, PacketField>> = {
  '-s': 'source',
  '-d': 'destination',
  '-i': 'inInterface',
  '-o': 'outInterface',
  '-p': 'protocol',
}

type PacketField = 'source' | 'destination' | 'inInterface' | 'outInterface' | 'protocol'

/** The conditions of a rule, option by option; comments are left out. */
export function conditionsOf(spec: RuleSpec): readonly RuleOption[] {
  const ofPacket = Object.entries(fields).flatMap(([name, field]) => asOption(name, spec[field]))
  const ofMatches = (spec.matches ?? [])
    .filter(({ name }) => name !== 'comment')
    .flatMap(({ args }) => optionsOf(args))
  return [...ofPacket, ...ofMatches]
}

function asOption(name: string, value: string | Not<string> | undefined): readonly RuleOption[] {
  if (value === undefined) return []
  const isNot = typeof value !== 'string'
  return [{ name, values: [isNot ? value.not : value], isNot }]
}

/** The comment of a rule, at any place among its matches; empty if there is none. */
export function commentOf({ comment, matches = [] }: RuleSpec): string {
  const isComment = ({ name }: Match) => name === 'comment'
  return comment ?? optionsOf(matches.find(isComment)?.args ?? [])[0]?.values[0] ?? ''
}

/** The chain or target that a rule goes to, as iptables-save prints the rule. */
export function targetOf(text: string): string | undefined {
  const { jump, goto } = parseRule(text)
  return jump ?? goto
}
