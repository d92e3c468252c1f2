import { good, type Outcome } from './outcome.js'

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

/** No status line is longer. */
export const longestStatusLine = 256

/**
 * Reads the outcome from the first bytes of an answer; undefined while more are needed. The
 * statuses 200-399 are good, as for a probe of the kubelet. A redirect is not followed: an endpoint
 * that redirects works.
 */
export function httpAnswer(head: string): Outcome | undefined {
  const end = head.indexOf('\n')
  if (end < 0 && head.length < longestStatusLine && 'HTTP/1.'.startsWith(head.slice(0, 7))) {
    return undefined
  }
  const status = /^HTTP\/1\.[01] (\d{3})(?=[ \r\n])/.exec(head)?.[1]
  if (status === undefined) return { kind: 'bad', reason: 'answers, but not in HTTP/1' }
  return /^[23]/.test(status) ? good : { kind: 'bad', reason: `answers with status ${status}` }
}
