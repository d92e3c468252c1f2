import type { Socket } from 'node:net'
import type { CheckTarget } from './messages.js'

/** What one check found. `unknown`: this node could not check, which says nothing of the endpoint. */
export type Outcome =
  { readonly kind: 'good' } | { readonly kind: 'bad' | 'unknown'; readonly reason: string }

export const good: Outcome = { kind: 'good' }

export const closedTooSoon: Outcome = { kind: 'bad', reason: 'closed before an answer' }

/** The time of a check is over. */
export function late({ timeoutMs }: CheckTarget['check'], isConnected: boolean): Outcome {
  const what = isConnected ? 'no answer' : 'no connection'
  return { kind: 'bad', reason: `${what} within ${timeoutMs} ms` }
}

/** Errors because this process or node is short of something. */
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

/** Talks to a connected endpoint until it knows. What it tells after the first time is not heard. */
export type Conversation = (socket: Socket, told: (outcome: Outcome) => void) => void
