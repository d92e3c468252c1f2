import type { IncomingMessage } from 'node:http'
import { SourceError } from '../errors.js'
import { reasonOf } from './failure-reason.js'

export interface SilenceLimits {
  /** The request fails if no byte of the body comes for this time. */
  readonly idleTimeoutMs: number
  /** After this silence the server is asked for a sign of life; if absent, never. */
  readonly askAfterMs?: number
}

/** The error of a request to which nothing came for too long. */
export class Silence extends SourceError {
  /** Whether the server answered other requests meanwhile. It may just have had nothing to send. */
  readonly isServerAlive: boolean

  constructor(
    what: string,
    phase: string,
    options: { readonly ms: number; readonly isServerAlive: boolean; readonly isSlow?: boolean },
  ) {
    const { ms, isServerAlive, isSlow = false } = options
    const why = isServerAlive
      ? 'the API server answers, but this connection may be dead'
      : isSlow
        ? 'it was still coming, so the way to the API server is slow'
        : 'the API server does not respond or cannot be reached'
    super(`${what}: ${phase} for ${Math.round(ms)} ms; ${why}`)
    this.isServerAlive = isServerAlive
  }
}

/**
 * Ends a response that is silent for too long. A quiet watch is silent, too, and over HTTP/1 the
 * server cannot be asked on the connection of the watch, so `ask` asks on another one. `ask`
 * resolves to the time of the server's last answer, or to undefined when it did not answer.
 */
export function limitSilence(
  response: IncomingMessage,
  what: string,
  options: Required<SilenceLimits> & { readonly ask: () => Promise<number | undefined> },
): void {
  const { idleTimeoutMs, askAfterMs, ask } = options
  const { socket } = response
  let heard = socket.bytesRead
  let since = performance.now()
  let isServerAlive = false
  let armedMs = 0
  let dueAt = 0
  const arm = (until: number) => {
    const now = performance.now()
    armedMs = Math.max(1, Math.min(until, since + idleTimeoutMs) - now)
    dueAt = now + armedMs
    socket.setTimeout(armedMs)
  }
  const fail = (ms: number) => {
    response.destroy(new Silence(what, 'no byte', { ms, isServerAlive }))
  }
  const looked = (answeredAt: number | undefined) => {
    if (response.destroyed) return
    if (answeredAt === undefined && socket.bytesRead === heard) {
      isServerAlive = false
      fail(performance.now() - since)
      return
    }
    isServerAlive = answeredAt !== undefined
    arm((answeredAt ?? performance.now()) + askAfterMs)
  }
  // The socket restarts its timer at each byte, so the bytes of a busy watch cost nothing here.
  const silent = (now: number) => {
    if (socket.bytesRead !== heard) {
      heard = socket.bytesRead
      since = now - armedMs
      isServerAlive = false
    } else {
      // Time in which this thread was held up does not count: it could not ask the server.
      since += Math.max(0, now - dueAt)
    }
    // Timers fire up to a millisecond early.
    if (now - since >= idleTimeoutMs - 1) fail(now - since)
    else if (now - since < askAfterMs - 1) arm(since + askAfterMs)
    else void ask().then(looked)
  }
  whenSilent(response, silent)
  arm(since + askAfterMs)
}

/**
 * Calls back with the time when the timer of the socket was over. What came while this thread was
 * held up is read after the timers, and starts that timer again.
 */
function whenSilent(response: IncomingMessage, silent: (now: number) => void): void {
  const { socket } = response
  const timedOut = () => {
    const [now, read] = [performance.now(), socket.bytesRead]
    setImmediate(() => {
      if (!response.destroyed && socket.bytesRead === read) silent(now)
    })
  }
  socket.on('timeout', timedOut)
  response.once('close', () => socket.off('timeout', timedOut))
}

/** Ends a response that is not complete after this time. */
export function limitTotal(response: IncomingMessage, what: string, ms: number): void {
  const told = { ms, isServerAlive: false, isSlow: true }
  const late = new Silence(what, 'no complete answer', told)
  const timer = setTimeout(() => response.destroy(late), ms)
  response.once('close', () => clearTimeout(timer))
}

/** Node says only "aborted" of a body whose connection ended, whatever the reason. */
export function explainEnd(response: IncomingMessage, what: string): void {
  const { socket } = response
  const ended = () => {
    if (response.complete) return
    const { errored } = socket
    const why = errored
      ? reasonOf(errored)
      : 'the connection was closed in the middle of the answer'
    response.destroy(new SourceError(`${what}: ${why}`, { cause: errored }))
  }
  socket.prependOnceListener('close', ended)
  response.once('close', () => socket.off('close', ended))
}
