import { KernelError, messageOf } from '../errors.js'
import { isIptablesError } from '../kernel/iptables.js'
import type { IptablesErrorKind } from '../kernel/iptables.js'
import type { KernelErrorKind } from '../errors.js'

/** The library speaks of locks and programs, the rest of the house of the kernel. */
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

export function kernelError(error: unknown, action: string): KernelError {
  if (error instanceof KernelError) return error
  const kind = isIptablesError(error) ? kinds[error.kind] : 'failed'
  const detail = isIptablesError(error) ? { detail: error.detail } : {}
  return new KernelError(kind, `${action}: ${messageOf(error)}`, { cause: error, ...detail })
}
