import { Slice } from '../async.js'
import { KernelError, type KernelErrorKind } from '../errors.js'
import { parseCidr, parseIp } from '../state/ip.js'
import { protocolNames, protocolNumbers } from './addresses.js'
import { runCommand, type Run } from './command.js'

/** A set as `ipset create` takes it. */
export interface IpSet {
  readonly name: string
  readonly type: string
  /** Options in the order in which `ipset save` prints them. */
  readonly options: string
}

export interface SavedIpSet extends IpSet {
  /** Members that only another program writes may end with ` nomatch`. */
  readonly members: ReadonlySet<string>
}

const nameLimit = 31

/** The lines of one `ipset restore`. Members and names are checked: nothing can add a line. */
export class IpSetBatch {
  readonly #lines: string[] = []

  /** Creates the set unless it exists; fails where an existing set differs. */
  create({ name, type, options }: IpSet): this {
    return this.#push(`create ${checkName(name)} ${type} ${options} -exist`)
  }

  add(name: string, member: string): this {
    return this.#push(`add ${checkName(name)} ${checkMember(member)} -exist`)
  }

  delete(name: string, member: string): this {
    const named = checkMember(member.replace(/ nomatch$/, ''))
    return this.#push(`del ${checkName(name)} ${named} -exist`)
  }

  /** Exchanges two sets of the same type, also while rules refer to them. */
  swap(name: string, other: string): this {
    return this.#push(`swap ${checkName(name)} ${checkName(other)}`)
  }

  destroy(name: string): this {
    return this.#push(`destroy ${checkName(name)}`)
  }

  get size(): number {
    return this.#lines.length
  }

  toString(): string {
    return this.#lines.length === 0 ? '' : `${this.#lines.join('\n')}\n`
  }

  #push(line: string): this {
    this.#lines.push(line)
    return this
  }
}

/** The kernel's IP sets, over the ipset program: one process per call for any number of sets. */
export class IpSets {
  readonly #run: Run

  constructor(run: Run = runCommand) {
    this.#run = run
  }

  /** `v7.22`, or all that the program prints if that has no version in this form. */
  async version(): Promise<string> {
    const { stdout } = await this.#expect(['--version'], 'ask ipset for its version')
    return /v\d[\d.]*/.exec(stdout)?.[0] ?? stdout.trim()
  }

  /** Applies the lines in order. When a line is refused, the lines before it stay applied. */
  async restore(batch: IpSetBatch): Promise<void> {
    if (batch.size > 0) await this.#expect(['restore'], 'restore ipsets', batch.toString())
  }

  /** Every set of the kernel with its members in canonical form. */
  async list(): Promise<ReadonlyMap<string, SavedIpSet>> {
    const { stdout } = await this.#expect(['save'], 'list ipsets')
    return savedSets(stdout)
  }

  async #expect(args: readonly string[], action: string, stdin = '') {
    const result = await this.#run('ipset', args, { stdin: withNumbers(stdin) })
    if (result.code === 0) return result
    throw classify(action, result.stderr, stdin)
  }
}

const { TCP: tcp, UDP: udp, SCTP: sctp } = protocolNumbers
const numbers = { tcp, udp, sctp } as const

/** Protocols by number: the program reads their names in /etc/protocols, which small images lack. */
function withNumbers(lines: string): string {
  return lines.replace(/,(tcp|udp|sctp):/g, (_, name: 'tcp' | 'udp' | 'sctp') => {
    return `,${numbers[name]}:`
  })
}

/** The first pattern that matches names the reason. */
const reasons: readonly (readonly [RegExp, KernelErrorKind])[] = [
  [/permitted|must be root/i, 'denied'],
  [/does not exist/, 'not-found'],
  [/in use/, 'busy'],
  [/already exists/, 'exists'],
  [/protocol|module|not supported/i, 'unsupported'],
]

function classify(action: string, stderr: string, stdin: string): KernelError {
  const text = stderr.trim()
  const line = /[Ee]rror in line (\d+)/.exec(text)?.[1]
  const culprit = line === undefined ? '' : ` (${stdin.split('\n')[Number(line) - 1] ?? ''})`
  const kind = reasons.find(([pattern]) => pattern.test(text))?.[1] ?? 'failed'
  return new KernelError(kind, `${action}: ${text}${culprit}`, { detail: text })
}

/** Reads what `ipset save` prints. Other work runs meanwhile. */
export async function savedSets(text: string): Promise<ReadonlyMap<string, SavedIpSet>> {
  const sets = new Map<string, SavedIpSet & { members: Set<string> }>()
  const slice = new Slice()
  for (const line of text.split('\n')) {
    if (slice.isOver) await slice.rest()
    const [verb, name = '', third = '', ...rest] = line.split(' ')
    if (verb === 'create') {
      sets.set(name, { name, type: third, options: optionsOf(rest), members: new Set() })
    } else if (verb === 'add') {
      const excepts = rest.includes('nomatch') ? ' nomatch' : ''
      sets.get(name)?.members.add(canonicalMember(third) + excepts)
    }
  }
  return sets
}

/** With the last three a set forgets members, or keeps other members than it gets. */
const keptOptions = new Set(['family', 'maxelem', 'range', 'timeout', 'netmask', 'bitmask'])

/**
 * The options of a saved set, without values that the kernel chose, such as the seed of its hash.
 */
function optionsOf(words: readonly string[]): string {
  const kept: string[] = []
  for (let index = 0; index < words.length; index += 2) {
    const [key = '', value = ''] = words.slice(index, index + 2)
    if (keptOptions.has(key)) kept.push(key, value)
  }
  return kept.join(' ')
}

/**
 * Members as ipset prints them where it has /etc/protocols, with addresses in the form this program
 * uses everywhere.
 */
function canonicalMember(member: string): string {
  return member
    .split(',')
    .map((part) => (parseIp(part) ?? parseCidr(part))?.text ?? withName(part))
    .join(',')
}

function withName(service: string): string {
  const [, number, port] = /^(\d+):(\d+)$/.exec(service) ?? []
  const name = number === undefined ? undefined : protocolNames.get(Number(number))
  return name === undefined ? service : `${name.toLowerCase()}:${port}`
}

/**
 * Whether a member is of a form that netlink writes here. Others, such as those of other
 * protocols, only the program can delete.
 */
export function isPlainMember(member: string): boolean {
  return /^(\d+|[\da-f.:]+(,(tcp|udp|sctp):\d+(,[\da-f.:/]+)?)?)$/.test(member)
}

function checkName(name: string): string {
  if (/^[A-Za-z0-9_.-]+$/.test(name) && name.length <= nameLimit) return name
  throw new RangeError(`ipset name ${JSON.stringify(name)}: up to ${nameLimit} letters, digits, -`)
}

function checkMember(member: string): string {
  if (/^[0-9a-fA-F.:,/a-z][0-9a-fA-F.:,/a-z-]*$/.test(member)) return member
  throw new RangeError(`ipset member ${JSON.stringify(member)}: addresses, ports, protocols only`)
}
