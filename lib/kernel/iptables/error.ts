/** Why an iptables program refused; callers never need to match its text. */
export type IptablesErrorKind =
  /** No such program on this node. */
  | 'missing'
  /** Not root, or without CAP_NET_ADMIN. */
  | 'denied'
  /** Another program holds the xtables lock. */
  | 'locked'
  /** A match, target or table this kernel or this build of iptables does not have. */
  | 'unsupported'
  /** The chain or rule does not exist. */
  | 'not-found'
  /** The text of a rule is wrong. */
  | 'invalid'
  | 'timed-out'
  /** Ended by Ctrl-C, which a terminal also sends to this process. */
  | 'interrupted'
  | 'failed'

interface IptablesErrorFields {
  /** Number of the refused line in the input of a restore, from 1. */
  readonly line?: number | undefined
  /** That line itself. */
  readonly lineText?: string | undefined
  /** What the program printed. */
  readonly detail?: string
  readonly cause?: unknown
}

export class IptablesError extends Error {
  override readonly name = 'IptablesError'
  readonly kind: IptablesErrorKind
  readonly line: number | undefined
  readonly lineText: string | undefined
  readonly detail: string

  constructor(kind: IptablesErrorKind, message: string, fields: IptablesErrorFields = {}) {
    super(message, { cause: fields.cause })
    this.kind = kind
    this.line = fields.line
    this.lineText = fields.lineText
    this.detail = fields.detail ?? ''
  }
}

export function isIptablesError(error: unknown, kind?: IptablesErrorKind): error is IptablesError {
  return error instanceof IptablesError && (kind === undefined || error.kind === kind)
}

/** `iptables-save` has left out a table, and nobody lists its chains one by one. */
export function leftOutError(table: string): IptablesError {
  const why = `iptables-save leaves out table ${table}, where nft has written a rule that iptables cannot read`
  return new IptablesError('failed', `${why}; put this rule into a table of its own`)
}

/** The first pattern that matches names the reason, so their order counts. */
const reasons: readonly (readonly [RegExp, IptablesErrorKind])[] = [
  [/xtables lock|can't lock/i, 'locked'],
  [/you must be root|permission denied|operation not permitted/i, 'denied'],
  [
    /couldn't load (match|target)|missing kernel module|not supported|unable to initialize table|protocol not available|table does not exist|iptables who\?/i,
    'unsupported',
  ],
  [
    /no chain\/target\/match by that name|does a matching rule exist|does not exist|chain .* is incompatible/i,
    'not-found',
  ],
  [/invalid|bad argument|unknown option|unknown arg|must be|too long|host\/network/i, 'invalid'],
]

const hints: Partial<Record<IptablesErrorKind, string>> = {
  denied: 'run as root or with CAP_NET_ADMIN in the network namespace of the node',
  unsupported: 'load the kernel module or install the iptables extension',
}

/**
 * Files that name the tables of the legacy flavour. Only root may open them; capabilities do not
 * help.
 */
const listsOfTables = /\/proc\/net\/ip6?_tables_names/
const rootAlone = 'root alone may read this file; as root, `kube-proxy cleanup` removes these rules'

interface FailedRun {
  readonly action: string
  readonly code: number
  readonly stderr: string
  /** The text a restore was given; the failing line is quoted from it. */
  readonly input?: string | undefined
  /** Who holds the xtables lock, such as `iptables (pid 4711)`. */
  readonly holder?: string | undefined
}

/** Turns the exit code and the complaint of an iptables program into an error. */
export function classifyFailure(run: FailedRun): IptablesError {
  const { action, stderr, input } = run
  const kind = reasons.find(([pattern]) => pattern.test(stderr))?.[1] ?? 'failed'
  const line = failingLineOf(stderr)
  const lineText = line === undefined || input === undefined ? undefined : nthLine(input, line)
  const where = line === undefined ? '' : ` at line ${line}${lineText ? ` (${lineText})` : ''}`
  const hint = hintFor(kind, run)
  const message = `${action}: ${reasonOf(stderr) || `exit code ${run.code}`}${where}${hint ? `; ${hint}` : ''}`
  return new IptablesError(kind, message, { line, lineText, detail: stderr })
}

function hintFor(kind: IptablesErrorKind, { stderr, holder }: FailedRun): string | undefined {
  if (kind === 'denied' && listsOfTables.test(stderr)) return rootAlone
  if (kind !== 'locked') return hints[kind]
  return `${holder ?? 'another program'} holds the xtables lock: wait until it is done, or end it`
}

function failingLineOf(stderr: string): number | undefined {
  const found = /(?:occurred at line: |^line |: line )(\d+)/m.exec(stderr)?.[1]
  return found === undefined ? undefined : Number(found)
}

function reasonOf(stderr: string): string {
  const line = stderr
    .split('\n')
    .map((text) => text.replace(/^ip6?tables\S*( v[\d.]+ \(\w+\))?: */, '').trim())
    .find((text) => text !== '' && !/^(#|Error occurred|Try `|Perhaps )/.test(text))
  return line === undefined ? '' : line.charAt(0).toLowerCase() + line.slice(1)
}

function nthLine(text: string, wanted: number): string | undefined {
  let start = 0
  for (let line = 1; line < wanted; line++) {
    start = text.indexOf('\n', start) + 1
    if (start === 0) return undefined
  }
  const end = text.indexOf('\n', start)
  return text.slice(start, end < 0 ? undefined : end)
}
