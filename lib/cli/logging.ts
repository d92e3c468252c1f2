import { writeSync } from 'node:fs'
import type { Logging } from '../config/config.js'
import type { Log } from '../modes/mode.js'
import { createLogger, type Logger } from '../observe/logger.js'
import { showsColours } from './process.js'

/** The log of this process, on standard error: text on a terminal, JSON elsewhere. */
export function processLogger({ format, verbosity }: Logging): Logger {
  const isTerminal = process.stderr.isTTY
  let lost = 0
  const logger = createLogger({
    format: format === '' ? (isTerminal ? 'text' : 'json') : format,
    verbosity,
    isTerminal: showsColours(process.stderr),
    write: (line) => {
      // One line waits for a reader that hangs. Those after it must not: each wait stops the proxy.
      if (!writeStderr(line, lost === 0 ? maxTries : 1)) {
        lost++
      } else if (lost > 0) {
        const lines = lost
        lost = 0
        logger.warn({ lines }, 'Lines of the log before this one were lost: nothing read them')
      }
    },
  })
  return logger
}

/** Logs the warnings of Node, which prints text: no reader of JSON lines expects that. */
export function logWarnings(log: Log): void {
  process.removeAllListeners('warning')
  process.on('warning', ({ name, message, stack }) => {
    log.warn({ warning: name, message, stack }, 'Node.js warns')
  })
}

/**
 * Returns whether the whole line was written. It is synchronous, so that the last lines of a
 * process are not lost.
 */
function writeStderr(line: string, tries: number): boolean {
  const bytes = Buffer.from(line)
  let written = 0
  for (let left = tries; written < bytes.length && left > 0; left--) {
    try {
      written += writeSync(2, bytes, written)
    } catch (error) {
      // A closed terminal has no reader. The reader of a full pipe may read in a moment.
      if (!isBusy(error)) return false
      if (left > 1) Atomics.wait(pause, 0, 0, 1)
    }
  }
  return written === bytes.length
}

/** A reader that hangs must not stop the proxy. After 20 ms the rest of a line is dropped. */
const maxTries = 20
const pause = new Int32Array(new SharedArrayBuffer(4))

function isBusy(error: unknown): boolean {
  return error instanceof Error && 'code' in error && error.code === 'EAGAIN'
}
