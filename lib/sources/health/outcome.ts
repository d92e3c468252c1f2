import type { Socket } from 'node:net'
import type { CheckTarget } from './messages.js'

/**
 * The result of one check. `unknown` means that this node could not check, so nothing is known
 * about the endpoint.
 */
export type Outcome =
  | { readonly kind: 'good' }
  | { readonly kind: 'bad' | 'unknown'; readonly reason: string }

export const good: Outcome = { kind: 'good' }

export const closedTooSoon: Outcome = { kind: 'bad', reason: 'closed before an answer' }

/** The outcome of a check whose time is over. */
export function late({ timeoutMs }: CheckTarget['check'], isConnected: boolean): Outcome {
  const what = isConnected ? 'no answer' : 'no connection'
  return { kind: 'bad', reason: `${what} within ${timeoutMs} ms` }
}

/** Errors that mean that this process or this node is short of something. */
const ownShortages: ReadonlySet<string> = new Set([
  ...['EMFILE', 'ENFILE', 'ENOBUFS', 'ENOMEM', 'EADDRNOTAVAIL'],
])

const words: Readonly<Record<string, string>> = {
  ECONNREFUSED: 'connection refused',
  ECONNRESET: 'connection reset',
  EHOSTUNREACH: 'host unreachable',
  ENETUNREACH: 'network unreachable',
}

/** What the error code of a socket says about the endpoint. */
export function refusal(code: string): Outcome {
  return { kind: ownShortages.has(code) ? 'unknown' : 'bad', reason: words[code] ?? code }
}

/**
 * Talks to a connected endpoint until the outcome is known. Only the first call of `told` counts.
 */
export type Conversation = (socket: Socket, told: (outcome: Outcome) => void) => void
