import { quoteArguments, splitArguments } from './arguments.js'

/**
 * Rules as values. A rule is built from typed parts, every part is checked or quoted, and the
 * result is one line that iptables-restore reads back as exactly the arguments that went in:
 * whatever a comment or a name contains, it cannot end the line or add an option.
 * The parts are written in the order in which iptables-save prints them.
 */

export interface Not<T> {
  readonly not: T
}

/** Negates an address or interface: `source: not('10.0.0.0/8')`. */
export function not<T>(value: T): Not<T> {
  return { not: value }
}

/** `-m name args…`; the options of a match, already split into arguments. */
export interface Match {
  readonly name: string
  readonly args: readonly string[]
}

export interface RuleSpec {
  /** Address or CIDR. */
  readonly source?: string | Not<string>
  readonly destination?: string | Not<string>
  /** Interface name, or the start of one with a `+` behind it. */
  readonly inInterface?: string | Not<string>
  readonly outInterface?: string | Not<string>
  /** `tcp`, `udp`, `sctp`, `icmp`… */
  readonly protocol?: string | Not<string>
  /** Any text. It is made printable and cut to the length that the kernel allows. */
  readonly comment?: string
  /** In the order in which the kernel evaluates them. */
  readonly matches?: readonly Match[]
  /** Chain or target; a rule without one only counts. */
  readonly jump?: string
  /** Instead of `jump`: a chain to go to for good. Its end is also the end of this chain. */
  readonly goto?: string
  /** Options of the target, already split into arguments. */
  readonly jumpArgs?: readonly string[]
}

/** The kernel's limit for a comment, with its closing zero. */
const maxCommentBytes = 255

/** One rule without its chain, as `-A CHAIN` takes it. */
export class Rule {
  readonly text: string

  constructor(args: readonly string[]) {
    this.text = quoteArguments(args)
  }

  get args(): readonly string[] {
    return splitArguments(this.text)
  }

  toString(): string {
    return this.text
  }
}

export function rule(spec: RuleSpec): Rule {
  const args: string[] = []
  push(args, '-s', spec.source, checkAddress)
  push(args, '-d', spec.destination, checkAddress)
  push(args, '-i', spec.inInterface, checkInterface)
  push(args, '-o', spec.outInterface, checkInterface)
  push(args, '-p', spec.protocol, checkName)
  if (spec.comment !== undefined) {
    args.push('-m', 'comment', '--comment', printableComment(spec.comment))
  }
  for (const match of spec.matches ?? []) args.push('-m', checkName(match.name), ...match.args)
  if (spec.jump !== undefined) args.push('-j', checkChain(spec.jump), ...(spec.jumpArgs ?? []))
  if (spec.goto !== undefined) args.push('-g', checkChain(spec.goto))
  return new Rule(args)
}

/** Whether the text can be the name of a chain or target. */
export function isChainName(name: string): boolean {
  return /^[A-Za-z0-9_.][A-Za-z0-9_.-]{0,27}$/.test(name)
}

/** Throws RangeError unless the text can be the name of a chain or target. */
export function checkChain(name: string): string {
  if (isChainName(name)) return name
  throw new RangeError(`chain name ${JSON.stringify(name)}: up to 28 letters, digits, - _ .`)
}

/** Any text as a comment: one printable line of at most 255 bytes. */
export function printableComment(text: string): string {
  const line = text.replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]|\p{Surrogate}/gu, '?')
  // A lone exclamation mark would be read as a negation by some versions.
  const safe = line === '!' ? '(!)' : line
  if (safe.length * 3 < maxCommentBytes) return safe
  const utf8 = new TextEncoder()
  let bytes = 0
  let kept = ''
  for (const char of safe) {
    bytes += utf8.encode(char).length
    if (bytes >= maxCommentBytes) break
    kept += char
  }
  return kept
}

function push(
  args: string[],
  option: string,
  value: string | Not<string> | undefined,
  check: (text: string) => string,
): void {
  if (value === undefined) return
  if (typeof value === 'string') args.push(option, check(value))
  else args.push('!', option, check(value.not))
}

function checkAddress(text: string): string {
  if (/^[0-9a-fA-F:.]{2,45}(\/(\d{1,3}|[0-9a-fA-F:.]{2,45}))?$/.test(text)) return text
  throw new RangeError(`address ${JSON.stringify(text)}: not an IP address, CIDR or masked address`)
}

function checkInterface(text: string): string {
  if (/^[^\s/!"'\\-][^\s/!"'\\]{0,14}$/.test(text)) return text
  throw new RangeError(`interface ${JSON.stringify(text)}: not a name of up to 15 characters`)
}

function checkName(text: string): string {
  if (/^[A-Za-z0-9_][A-Za-z0-9_-]{0,28}$/.test(text)) return text
  throw new RangeError(`match or protocol ${JSON.stringify(text)}: not a name`)
}
