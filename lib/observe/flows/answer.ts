import { ConfigError } from '../../errors.js'
import type { FlowFilter, FlowLog, KeptLine } from './flow-log.js'
import { verdicts } from './line.js'
import { asArray, asObject, parseJson } from '../../state/json.js'

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

/** Reads the answer of a proxy. Undefined if another program, or another version, has the port. */
export function flowsAnswerIn(text: string): FlowsAnswer | undefined {
  const answer = asObject(parseJson(text))
  const flows = asArray(answer?.flows)
  const isWhole =
    flows?.every(isRecord) && typeof answer?.next === 'number' && typeof answer.leftOut === 'number'
  return isWhole ? (answer as unknown as FlowsAnswer) : undefined
}

const textFields = [
  ...['time', 'event', 'verdict', 'why', 'protocol', 'client', 'service', 'address', 'endpoint'],
  ...['clientPod', 'endpointPod'],
]
const numberFields = ['durationMs', 'bytesToEndpoint', 'bytesToClient']

function isRecord(value: unknown): boolean {
  const record = asObject(value)
  return (
    record !== undefined &&
    textFields.every((name) => typeof record[name] === 'string') &&
    numberFields.every((name) => ['number', 'undefined'].includes(typeof record[name]))
  )
}

/** Asks one proxy again and again. Each question goes on where the last answer ended. */
export class FlowsFollower {
  readonly #query: URLSearchParams
  #before: Pick<FlowsAnswer, 'next' | 'leftOut'> | undefined

  constructor(query: URLSearchParams) {
    this.#query = query
  }

  query(): string {
    const query = new URLSearchParams(this.#query)
    if (this.#before) {
      query.set('after', String(this.#before.next))
      query.delete('limit')
    }
    return query.toString()
  }

  /** Takes an answer to the query. Returns how many lines were left out since the last one. */
  take({ next, leftOut }: FlowsAnswer): number {
    const before = this.#before
    // A proxy that was restarted has left out fewer lines. Its numbers are lower only if the clock was
    // set back.
    const isSetBack = before !== undefined && next < before.next
    const isNew = isSetBack || (before !== undefined && leftOut < before.leftOut)
    this.#before = { next: isSetBack ? 0 : next, leftOut }
    return leftOut - (isNew ? 0 : (before?.leftOut ?? 0))
  }
}

/** Throws a ConfigError for a query that makes no sense. */
export function flowsAnswer(log: FlowLog, query: string): FlowsAnswer {
  const wanted = new URLSearchParams(query)
  const { lines, next, leftOut } = log.find(
    filterOf(wanted),
    wholeNumber(wanted, 'after', 0),
    wholeNumber(wanted, 'limit', Infinity),
  )
  return { flows: lines.map(recordOf), next, leftOut }
}

export function recordOf({ at, number: _, ...line }: KeptLine): FlowRecord {
  return { time: new Date(at).toISOString(), ...line }
}

function filterOf(wanted: URLSearchParams): FlowFilter {
  const [service = '', from = '', text = ''] = ['service', 'from', 'verdict'].map(
    (name) => wanted.get(name) ?? '',
  )
  const verdict = (['', ...verdicts] as const).find((one) => one === text)
  if (verdict !== undefined) return { service, from, verdict }
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
