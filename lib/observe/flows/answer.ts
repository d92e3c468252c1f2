import { ConfigError } from '../../errors.js'
import type { FlowFilter, FlowLog, KeptLine } from './flow-log.js'
import { verdicts, type FlowVerdict } from './line.js'

/** The answer of `/flows`: the newest lines that the query asks for. */
export interface FlowsAnswer {
  readonly flows: readonly FlowRecord[]
  /** The value of `after` for the next query. */
  readonly next: number
  /** How many lines this proxy has not kept, because there were too many at a time. */
  readonly leftOut: number
}

/** A line as programs read it. Its fields are stable; docs/flows.md describes them. */
export interface FlowRecord extends Omit<KeptLine, 'at' | 'number'> {
  /** RFC 3339, in UTC. */
  readonly time: string
}

const mostLines = 1000

/** Throws a ConfigError for a query that makes no sense. */
export function flowsAnswer(log: FlowLog, query: string): FlowsAnswer {
  const wanted = new URLSearchParams(query)
  const { lines, next, leftOut } = log.find(
    filterOf(wanted),
    wholeNumber(wanted, 'after', 0),
    Math.min(mostLines, wholeNumber(wanted, 'limit', mostLines)),
  )
  return { flows: lines.map(recordOf), next, leftOut }
}

export function recordOf({ at, number: _, ...line }: KeptLine): FlowRecord {
  return { time: new Date(at).toISOString(), ...line }
}

function filterOf(wanted: URLSearchParams): FlowFilter {
  const [service, from, verdict] = ['service', 'from', 'verdict'].map((name) => wanted.get(name))
  return {
    ...(service ? { service } : {}),
    ...(from ? { from } : {}),
    ...(verdict ? { verdict: verdictOf(verdict) } : {}),
  }
}

function verdictOf(text: string): FlowVerdict {
  const verdict = verdicts.find((one) => one === text)
  if (verdict) return verdict
  throw new ConfigError(`verdict ${JSON.stringify(text)} is none of ${verdicts.join(', ')}`)
}

function wholeNumber(wanted: URLSearchParams, name: string, initial: number): number {
  const text = wanted.get(name)
  if (text === null) return initial
  if (!/^\d{1,15}$/.test(text)) {
    throw new ConfigError(`${name} ${JSON.stringify(text)} is not a whole number`)
  }
  return Number(text)
}
