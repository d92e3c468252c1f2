import { runCommand as run, type Run } from '../../lib/kernel/command.js'

/** Runs a program as the proxy does, but gives whole programs the time that a busy machine needs. */
export const runCommand: Run = (file, args, options) =>
  run(file, args, { timeoutMs: 600_000, ...options })
