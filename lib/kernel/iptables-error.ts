import { KernelError, messageOf, type KernelErrorKind } from '../errors.js'
import { isIptablesError, type IptablesErrorKind } from './iptables/error.js'

/** For each kind of the library the kind that the rest of the program knows. */
const kinds: Record<IptablesErrorKind, KernelErrorKind> = {
  missing: 'not-found',
  denied: 'denied',
  locked: 'busy',
  unsupported: 'unsupported',
  'not-found': 'not-found',
  invalid: 'invalid',
  'timed-out': 'timed-out',
  failed: 'failed',
}

/** An error of the iptables library as the rest of the program knows errors. */
export function kernelError(error: unknown, action?: string): KernelError {
  if (error instanceof KernelError) return error
  const { kind, detail } = isIptablesError(error) ? error : { kind: 'failed' as const, detail: '' }
  const message = action === undefined ? messageOf(error) : `${action}: ${messageOf(error)}`
  return new KernelError(kinds[kind], message, { cause: error, detail })
}
