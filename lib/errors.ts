/** A flag, a config key or a manifest the user must correct; the command exits with 2 and touches nothing. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError'
}

/** A source of objects failed (list, watch, file); the source itself retries. */
export class SourceError extends Error {
  override readonly name = 'SourceError'
}

export type KernelErrorKind =
  | 'not-found'
  | 'exists'
  | 'denied'
  | 'busy'
  | 'unsupported'
  | 'invalid'
  | 'timed-out'
  | 'interrupted'
  | 'failed'

/**
 * The kernel, or a tool that speaks to it, refused. The kind is found once, where the error arises,
 * so that no caller matches strings. `detail` holds what the tool printed.
 */
export class KernelError extends Error {
  override readonly name = 'KernelError'
  readonly kind: KernelErrorKind
  readonly detail: string

  constructor(
    kind: KernelErrorKind,
    message: string,
    options: { cause?: unknown; detail?: string } = {},
  ) {
    super(message, { cause: options.cause })
    this.kind = kind
    this.detail = options.detail ?? ''
  }
}

/** The result of `work`; undefined where the kernel has no such thing. */
export const ifThere = <T>(work: () => T): T | undefined => unless(['not-found'], work)

/** The result of `work`; undefined if the kernel refuses it for one of these reasons. */
export function unless<T>(kinds: readonly KernelErrorKind[], work: () => T): T | undefined {
  try {
    return work()
  } catch (error) {
    if (error instanceof KernelError && kinds.includes(error.kind)) return undefined
    throw error
  }
}

/** The result of `work`; undefined where it fails, for whatever reason. */
export function ifPossible<T>(work: () => T): T | undefined {
  try {
    return work()
  } catch {
    return undefined
  }
}

/** The name of the failure that Node gives an error, such as `ENOENT`; empty: none. */
export function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error ? String(error.code) : ''
}

const moreFiles = 'raise the limit of open files'

/**
 * The text of anything that was thrown. Node's advice to start Node otherwise helps no user. Any
 * work can run out of descriptors, so what to do then is said here.
 */
export function messageOf(error: unknown): string {
  const all = error instanceof Error ? error.message : String(error)
  const text = all.replace(
    /; if the root CA is installed locally, try running Node\.js with [-\w]+/,
    '',
  )
  const isAdvised = !/\bE[MN]FILE\b/.test(text) || text.includes(moreFiles)
  return isAdvised ? text : `${text}; ${moreFiles} (LimitNOFILE=)`
}
