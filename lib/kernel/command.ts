import { kernelError } from './iptables-error.js'
import { runProgram, type CommandOutput, type Run, type RunOptions } from './iptables/command.js'

export type CommandOptions = RunOptions
export type CommandResult = CommandOutput

/** Runs a program and tells how it ended. Unit tests pass a fake. */
export type RunCommand = Run

/**
 * Runs a program by argument vector, never through a shell, in the C locale. Resolves for every
 * exit code; rejects with a KernelError when the program is missing, killed or too slow.
 */
export const runCommand: RunCommand = (file, args, options) =>
  runProgram(file, args, options).catch((error: unknown) => {
    throw kernelError(error)
  })
