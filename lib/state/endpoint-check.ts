import {
  durationAnnotation,
  numberAnnotation,
  readAnnotation,
  wordAnnotation,
  type Annotation,
  type Options,
} from './annotations.js'
import type { Protocol } from './names.js'

/** How this node finds out whether an endpoint works, as the annotations of its Service ask for. */
export interface EndpointCheck {
  readonly kind: 'tcp' | 'http' | 'grpc'
  /** Empty unless the kind is `http`. */
  readonly path: string
  /** undefined: the port of the endpoint. */
  readonly port: number | undefined
  readonly intervalMs: number
  readonly timeoutMs: number
  /** Good answers in a row after which a failing endpoint is used again. */
  readonly rise: number
  /** Failures in a row after which an endpoint is used no more. */
  readonly fall: number
  /** If all endpoints fail, all are used. */
  readonly keepsLast: boolean
}

type What = Pick<EndpointCheck, 'kind' | 'path' | 'port'>

/** Asks for checks; the others say how. */
export const whatAnnotation: Annotation<What> = {
  name: 'health-check',
  valid: 'tcp[:PORT], http:/PATH[:PORT] or grpc[:PORT]',
  parse: (text) => {
    // A path is sent unchanged in a line of the request, so it must not contain the end of a line.
    const found = /^(?:(tcp|grpc)|http:(\/[\x21-\x7e]*?))(?::(\d{1,5}))?$/.exec(text)
    if (!found || text.length > longestCheck) return undefined
    const [, kind, path = '', digits] = found
    const port = digits === undefined ? undefined : Number(digits)
    if (port !== undefined && (port < 1 || port > 65_535)) return undefined
    return { kind: kind === 'tcp' || kind === 'grpc' ? kind : 'http', path, port }
  },
}

/** This limit keeps a request within one small packet. */
const longestCheck = 512

const intervalAnnotation = durationAnnotation('health-check-interval', 500, 3_600_000)
const timeoutAnnotation = durationAnnotation('health-check-timeout', 100, 60_000)
const riseAnnotation = numberAnnotation('health-check-rise', 1, 10)
const fallAnnotation = numberAnnotation('health-check-fall', 1, 10)
const lastAnnotation = wordAnnotation('health-check-last', ['keep', 'remove'])

export const checkAnnotations: readonly Annotation<unknown>[] = [
  whatAnnotation,
  intervalAnnotation,
  timeoutAnnotation,
  riseAnnotation,
  fallAnnotation,
  lastAnnotation,
]

/** The check that a Service asks for; undefined: none. */
export function endpointCheckOf(options: Options, protocol: Protocol): EndpointCheck | undefined {
  const what = readAnnotation(options, whatAnnotation)
  // Checks use TCP. So a UDP or SCTP port is checked only if the annotation names another port.
  if (!what || (protocol !== 'TCP' && what.port === undefined)) return undefined
  const intervalMs = readAnnotation(options, intervalAnnotation) ?? 10_000
  const timeoutMs = readAnnotation(options, timeoutAnnotation) ?? 1_000
  return {
    ...what,
    intervalMs,
    // A check must end before the next one begins.
    timeoutMs: Math.min(timeoutMs, intervalMs),
    rise: readAnnotation(options, riseAnnotation) ?? 2,
    fall: readAnnotation(options, fallAnnotation) ?? 3,
    keepsLast: readAnnotation(options, lastAnnotation) !== 'remove',
  }
}

/** For people: `tcp`, or `http:/healthz at port 8081`. */
export function checkText({ kind, path, port }: EndpointCheck): string {
  return `${kind}${path === '' ? '' : `:${path}`}${port === undefined ? '' : ` at port ${port}`}`
}
