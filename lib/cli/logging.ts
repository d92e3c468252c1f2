import { writeSync } from 'node:fs'
import type { Logging } from '../config/config.js'
import { createLogger, type Logger } from '../observe/logger.js'

/** The log of this process, on standard error: text on a terminal, JSON elsewhere. */
export function processLogger({ format, verbosity }: Logging): Logger {
  const isTerminal = process.stderr.isTTY
  return createLogger({
    format: format === '' ? (isTerminal ? 'text' : 'json') : format,
    verbosity,
    isTerminal: isTerminal && process.env['NO_COLOR'] === undefined,
    write: writeStderr,
  })
}

/** Synchronous, so that the last words of a process are not lost. */
function writeStderr(line: string): void {
  try {
    writeSync(2, line)
  } catch {
    // A full pipe or a closed terminal: a lost line must not stop the proxy.
  }
}
