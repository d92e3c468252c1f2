import type { Outcome } from './outcome.js'

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
