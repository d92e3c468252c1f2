import { addressOf, cidrContains, cidrOf, parseCidr, parseIp, type Cidr } from '../../state/ip.js'
import type { FlowLine, FlowVerdict } from './line.js'

/** A kept line: it has a number, and the names of pods that were known when it came. */
export interface KeptLine extends FlowLine {
  readonly number: number
  /** `namespace/name`; empty where it is not known. */
  readonly clientPod: string
  readonly endpointPod: string
}

/** Fields that are empty or absent let all lines through. */
export interface FlowFilter {
  /** Namespace and name of a Service, perhaps with a port; the namespace may be missing. */
  readonly service?: string
  /** A pod, an address or a CIDR, or several with commas between them. */
  readonly from?: string
  readonly verdict?: FlowVerdict | ''
}

interface FoundLines {
  readonly lines: readonly KeptLine[]
  /** The number with which to ask for the lines after these. */
  readonly next: number
  /** How many lines were not kept so far, because there were too many. */
  readonly leftOut: number
}

/** The newest lines of the stream; older ones are forgotten. */
export class FlowLog {
  readonly #limit: number
  readonly #podAt: (ip: string) => string
  /** No line has this number, or a lower one. */
  readonly before: number
  #lines: KeptLine[] = []
  #next: number
  #leftOut = 0
  #changed: () => void = () => undefined

  constructor(limit: number, podAt: (ip: string) => string, before = 0) {
    this.#limit = limit
    this.#podAt = podAt
    this.before = before
    this.#next = before + 1
  }

  /** Calls `listener` after each change from now on. */
  onChange(listener: () => void): void {
    this.#changed = listener
  }

  add(lines: readonly FlowLine[], leftOut: number): void {
    if (lines.length + leftOut === 0) return
    this.#leftOut += leftOut
    for (const line of lines) {
      this.#lines.push({
        ...line,
        number: this.#next++,
        clientPod: this.#podAt(addressOf(line.client)),
        endpointPod: this.#podAt(addressOf(line.endpoint)),
      })
    }
    // Old lines are removed many at a time, because each removal moves all lines that are left.
    if (this.#lines.length > 2 * this.#limit) this.#lines = this.#lines.slice(-this.#limit)
    this.#changed()
  }

  /** The newest `limit` lines that fit the filter, after the line of number `after`. */
  find(filter: FlowFilter, after: number, limit: number): FoundLines {
    const fits = matcherOf(filter)
    const found: KeptLine[] = []
    for (let index = this.#lines.length - 1; index >= 0 && found.length < limit; index--) {
      const line = this.#lines[index]
      if (!line || line.number <= after) break
      if (fits(line)) found.push(line)
    }
    return { lines: found.reverse(), next: this.#next - 1, leftOut: this.#leftOut }
  }
}

function matcherOf({ service, from, verdict }: FlowFilter): (line: KeptLine) => boolean {
  const senders = from && from.split(',').map((text) => ({ text, range: rangeOf(text) }))
  return (line) =>
    (!service ||
      isNamed(line.service, service) ||
      service === `${line.service}/${line.protocol}`) &&
    (!verdict || line.verdict === verdict) &&
    (!senders ||
      senders.some(({ text, range }) =>
        range ? isWithin(line.client, range) : isNamed(line.clientPod, text),
      ))
}

/** `web`, `default/web`, `web:http` and `default/web:http` all name `default/web:http`. */
function isNamed(whole: string, wanted: string): boolean {
  const [name = '', port] = whole.slice(whole.indexOf('/') + 1).split(':')
  const namespace = whole.slice(0, whole.indexOf('/'))
  const slash = wanted.indexOf('/')
  if (slash >= 0 && wanted.slice(0, slash) !== namespace) return false
  const [wantedName, wantedPort] = wanted.slice(slash + 1).split(':')
  return wantedName === name && (wantedPort === undefined || wantedPort === port)
}

/** The range of an address or a CIDR; undefined where the text is neither. */
export function rangeOf(text: string): Cidr | undefined {
  const ip = parseIp(text)
  return ip ? cidrOf(ip, ip.family === 'IPv4' ? 32 : 128) : parseCidr(text)
}

function isWithin(client: string, range: Cidr): boolean {
  const ip = parseIp(addressOf(client))
  return ip !== undefined && cidrContains(range, ip)
}
