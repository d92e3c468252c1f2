import type { ServerResponse } from 'node:http'

/** Writes the body of an answer. A fault uses another writer than the plain one. */
export interface BodyWriter {
  write(text: string): void
  end(): void
  /** Bytes that wait because the client reads slowly. */
  readonly backlog: number
}

export function plainWriter(response: ServerResponse): BodyWriter {
  return {
    write: (text) => void response.write(text),
    end: () => void response.end(),
    get backlog() {
      return response.writableLength
    },
  }
}

/** Sends half of the first text, then breaks the connection. */
export function cuttingWriter(response: ServerResponse): BodyWriter {
  let isCut = false
  return {
    write(text) {
      if (isCut) return
      isCut = true
      const half = text.slice(0, Math.ceil(text.length / 2))
      response.write(half, () => response.destroy())
    },
    end() {
      if (!isCut) response.destroy()
    },
    backlog: 0,
  }
}

/** Sends a few bytes at a time, as a bad network does. */
export function drippingWriter(
  response: ServerResponse,
  drip: { readonly bytes: number; readonly everyMs: number },
): BodyWriter {
  let waiting = Buffer.alloc(0)
  let hasEnded = false
  const timer = setInterval(() => {
    if (waiting.length > 0) response.write(waiting.subarray(0, drip.bytes))
    waiting = waiting.subarray(drip.bytes)
    if (waiting.length > 0 || !hasEnded) return
    clearInterval(timer)
    response.end()
  }, drip.everyMs)
  response.once('close', () => clearInterval(timer))
  return {
    write(text) {
      waiting = Buffer.concat([waiting, Buffer.from(text)])
    },
    end() {
      hasEnded = true
    },
    get backlog() {
      return waiting.length
    },
  }
}
