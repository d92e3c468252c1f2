/** The words of a rule: how they are quoted for iptables-restore, and how they form options. */

const maxArgumentLength = 1000

/** Arguments that iptables-restore reads without quotes. */
const plainArgument = /^[A-Za-z0-9_.,:/=+@%[\]-]+$/
/** A text that iptables-save prints without quotes. */
const plainText = /^[A-Za-z0-9_-]+$/

/**
 * One argument as iptables-restore reads it: in quotes where needed, with quotes and backslashes
 * escaped. A line break cannot be quoted there, so it is refused.
 */
function quoteArgument(argument: string, plain: RegExp): string {
  if (plain.test(argument)) return argument

  if (/[\u0000-\u001f\u007f]/.test(argument) || argument.length > maxArgumentLength) {
    throw new RangeError(
      `argument ${JSON.stringify(argument.slice(0, 80))}: not printable or too long`,
    )
  }
  if (argument === '!') return argument
  return `"${argument.replace(/[\\"]/g, '\\$&')}"`
}

/** All arguments of a rule, in quotes where iptables-save prints quotes. */
export function quoteArguments(args: readonly string[]): string {
  return args
    .map((argument, index) =>
      quoteArgument(argument, freeText.has(args[index - 1] ?? '') ? plainText : plainArgument),
    )
    .join(' ')
}

/** The inverse of quoting: one line of iptables-save as arguments. */
export function splitArguments(line: string): string[] {
  const words = line.match(/(?:[^ \t"]|"(?:[^"\\]|\\[^])*"?)+/g) ?? []
  return words.map((word) => (word.includes('"') ? unquoted(word) : word))
}

function unquoted(word: string): string {
  return word.replace(/"((?:[^"\\]|\\[^])*)"?/g, (_, inside: string) =>
    inside.replace(/\\([^])/g, '$1'),
  )
}

/** One option with its values: `! --ctstate NEW,DNAT`. */
export interface RuleOption {
  readonly name: string
  readonly values: readonly string[]
  readonly isNot: boolean
}

/** Options whose one value is free text, so it may begin like an option. */
const freeText = new Set(['--comment', '--log-prefix', '--nflog-prefix'])

/** Splits arguments into options. All arguments up to the next option are values of an option. */
export function optionsOf(args: readonly string[]): readonly RuleOption[] {
  const options: RuleOption[] = []
  let isNot = false
  for (let index = 0; index < args.length;) {
    const name = args[index++] ?? ''
    if (name === '!') {
      isNot = true
      continue
    }
    const first = index
    if (freeText.has(name)) index++
    else while (index < args.length && !isOption(args[index] ?? '')) index++
    options.push({ name, values: args.slice(first, index), isNot })
    isNot = false
  }
  return options
}

const isOption = (argument: string) => argument.startsWith('-') || argument === '!'

/** The inverse of {@link optionsOf}. */
export function argumentsOf(options: readonly RuleOption[]): string[] {
  const args: string[] = []
  for (const { name, values, isNot } of options) {
    if (isNot) args.push('!')
    args.push(name, ...values)
  }
  return args
}
