import { pino } from 'pino'
import type { Log } from '../modes/mode.js'
import { printableJson } from '../state/names.js'
import { formatLine } from './log-text.js'

/** The log of the program. Its level can change while it runs. */
export interface Logger extends Log {
  /** As `-v`: 0 events and syncs, 4 details, 6 everything. */
  setVerbosity(verbosity: number): void
}

interface LoggerOptions {
  readonly format: 'text' | 'json'
  readonly verbosity: number
  /** Whether to write colours, and the time without the date. */
  readonly isTerminal: boolean
  readonly write: (line: string) => void
}

/** Writes lines of JSON or of text, both with the same fields. */
export function createLogger(options: LoggerOptions): Logger {
  const { format, isTerminal, write } = options
  const logger = pino(
    {
      level: levelOf(options.verbosity),
      base: null,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (level) => ({ level }) },
    },
    {
      write: (line: string) =>
        write(format === 'json' ? printableJson(line) : formatLine(line, isTerminal)),
    },
  )
  return {
    debug: (fields, message) => logger.debug(fields, message),
    info: (fields, message) => logger.info(fields, message),
    warn: (fields, message) => logger.warn(fields, message),
    error: (fields, message) => logger.error(fields, message),
    setVerbosity: (verbosity) => {
      logger.level = levelOf(verbosity)
    },
  }
}

/** Details start at 4, because most clusters run kube-proxy with -v 2 (EV07). */
export function levelOf(verbosity: number): 'info' | 'debug' | 'trace' {
  if (verbosity < 4) return 'info'
  return verbosity < 6 ? 'debug' : 'trace'
}
