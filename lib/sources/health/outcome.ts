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

/**
 * The request of a check. The path has been checked: it has no space and no control character, so
 * it cannot add a second line or a second request.
 */
export function httpRequest(path: string, host: string): string {
  return (
    `GET ${path} HTTP/1.1\r\nHost: ${host}\r\nUser-Agent: kube-proxy-ts/health-check\r\n` +
    'Accept: */*\r\nConnection: close\r\n\r\n'
  )
}

/** No status line is longer, with the interim answers before it. */
export const longestStatusLine = 256

/** Answers such as `100 Continue`. The final one follows. After 101 something else than HTTP does. */
const interim = /^(?:HTTP\/1\.[01] 1(?!01)\d\d(?=[ \r\n])[^]*?\n\r?\n)+/
const openInterim = /^HTTP\/1\.[01] 1(?!01)\d\d[ \r\n]/

/**
 * Reads the outcome from the first bytes of an answer; undefined while more are needed. The
 * statuses 200-399 are good, as for a probe of the kubelet. A redirect is not followed: an endpoint
 * that redirects works.
 */
export function httpAnswer(head: string): Outcome | undefined {
  const answer = head.replace(interim, '')
  const isOpen = openInterim.test(answer) || !answer.includes('\n')
  if (isOpen && head.length < longestStatusLine && 'HTTP/1.'.startsWith(answer.slice(0, 7))) {
    return undefined
  }
  const status = /^HTTP\/1\.[01] (\d{3})(?=[ \r\n])/.exec(answer)?.[1]
  if (status === undefined) return { kind: 'bad', reason: 'answers, but not in HTTP/1' }
  return /^[23]/.test(status) ? good : { kind: 'bad', reason: `answers with status ${status}` }
}
