import { writeSync } from 'node:fs'
import type { Config } from '../config/config.js'
import { codeOf } from '../errors.js'
import type { Log } from '../modes/mode.js'
import { createLogger, type Logger } from '../observe/logger.js'
import { showsColours } from './process.js'

/** The log of this process, on standard error: text on a terminal, JSON elsewhere. */
export function processLogger({ format, verbosity }: Config['logging']): Logger {
  const isTerminal = process.stderr.isTTY
  const lines = new StderrLines((count) =>
    logger.warn({ lines: count }, 'Lines of the log before this one were lost: nothing read them'),
  )
  process.on('exit', () => lines.end())
  const logger = createLogger({
    format: format === '' ? (isTerminal ? 'text' : 'json') : format,
    verbosity,
    isTerminal: showsColours(process.stderr),
    write: (line) => lines.write(line),
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
 * Writes at once, so that the last lines of a process are not lost. Where the reader leaves no room,
 * lines wait here: to wait for the reader would stop the proxy.
 */
class StderrLines {
  readonly #tellLost: (lines: number) => void
  #waiting: Buffer[] = []
  #bytes = 0
  #lost = 0
  #timer: NodeJS.Timeout | undefined

  constructor(tellLost: (lines: number) => void) {
    this.#tellLost = tellLost
  }

  write(line: string): void {
    const bytes = Buffer.from(line)
    const isFull = this.#lost > 0 || this.#bytes + bytes.length > mostWaiting
    // After a lost line all are lost until nothing waits, so that one place of the log has a gap.
    if (isFull && this.#waiting.length > 0) {
      this.#lost++
      return
    }
    this.#waiting.push(bytes)
    this.#bytes += bytes.length
    if (!this.#timer) this.#flush()
  }

  /** The process ends: its reader gets a last moment. */
  end(): void {
    for (let tries = 0; !this.#flush() && tries < lastTries; tries++) Atomics.wait(pause, 0, 0, 1)
  }

  /** Returns whether nothing waits any more. */
  #flush(): boolean {
    clearTimeout(this.#timer)
    this.#timer = undefined
    for (let first = this.#waiting[0]; first; first = this.#waiting[0]) {
      const written = writeSome(first)
      this.#bytes -= written
      if (written < first.length) {
        this.#waiting[0] = first.subarray(written)
        this.#timer = setTimeout(() => this.#flush(), againMs).unref()
        return false
      }
      this.#waiting.shift()
    }
    const lost = this.#lost
    this.#lost = 0
    if (lost > 0) this.#tellLost(lost)
    return true
  }
}

/** Returns how many bytes were written. A closed terminal has no reader, and takes everything. */
function writeSome(bytes: Buffer): number {
  try {
    return writeSync(2, bytes)
  } catch (error) {
    return codeOf(error) === 'EAGAIN' ? 0 : bytes.length
  }
}

/** Enough for a reader that hangs for a few seconds. Further lines are lost. */
const mostWaiting = 1 << 20
const againMs = 20
const lastTries = 100
const pause = new Int32Array(new SharedArrayBuffer(4))
