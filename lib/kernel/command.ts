import { runProgram, type Run } from './iptables/command.js'
import { KernelError, messageOf, type KernelErrorKind } from '../errors.js'
import { isIptablesError, type IptablesErrorKind } from './iptables/error.js'

export type { CommandOutput, Run, RunOptions } from './iptables/command.js'

/**
 * Runs a program by argument vector, never through a shell, in the C locale. Resolves for every
 * exit code; rejects with a KernelError when the program is missing, killed or too slow.
 */
export const runCommand: Run = (file, args, options) =>
  runProgram(file, args, options).catch((error: unknown) => {
    throw kernelError(error)
  })

/** The kind of a KernelError for each kind of an IptablesError. */
const kinds: Record<IptablesErrorKind, KernelErrorKind> = {
  missing: 'not-found',
  denied: 'denied',
  locked: 'busy',
  unsupported: 'unsupported',
  'not-found': 'not-found',
  invalid: 'invalid',
  'timed-out': 'timed-out',
  interrupted: 'interrupted',
  failed: 'failed',
}

/** Turns an error of the iptables library into a KernelError. */
export function kernelError(error: unknown, action?: string): KernelError {
  if (error instanceof KernelError) return error
  const { kind, detail } = isIptablesError(error) ? error : { kind: 'failed' as const, detail: '' }
  const message = action === undefined ? messageOf(error) : `${action}: ${messageOf(error)}`
  return new KernelError(kinds[kind], message, { cause: error, detail })
}
