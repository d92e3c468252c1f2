import { asInteger, asObject, parseJson } from '../state/json.js'
import { verdicts } from '../observe/flows/line.js'
import { podActions } from './page-command.js'
import type { PageCommand } from './page-command.js'
import type { Sender } from './view.js'

const senders: readonly Sender[] = ['client-pod', 'node', 'outside', 'backend']

/** More than any playground has room for; pods without room wait. */
const maximumReplicas = 100

const maximumName = 254

type Command<Name> = Extract<PageCommand, { readonly do: Name }>

/** Reads a field; undefined where it is missing or is not allowed. */
type Reader<T> = (value: unknown) => T | undefined

type Readers = {
  readonly [Name in PageCommand['do']]: {
    readonly [Field in Exclude<keyof Command<Name>, 'do'>]-?: Reader<Command<Name>[Field]>
  }
}

const targets = ['ClusterIP', 'NodePort', 'LoadBalancer'] as const

/** The fields of each command. */
const readers: Readers = {
  mode: { mode: text() },
  rules: { mode: text() },
  compare: { modes: texts(2) },
  scheduler: { scheduler: one('rr', 'lc', 'sh', 'wrr') },
  select: { service: text(2 * maximumName) },
  pod: { pod: text(), action: one(...podActions) },
  marks: { marks: texts(maximumReplicas, 4 * maximumName) },
  replicas: { count: (value) => asInteger(value, 0, maximumReplicas) },
  affinity: { on: one(true, false) },
  continuous: { on: one(true, false) },
  policy: { side: one('internal', 'external'), value: one('Cluster', 'Local') },
  type: { type: one(...targets) },
  ranges: { ranges: texts(16) },
  sender: { sender: one(...senders) },
  target: { target: one(...targets) },
  family: { family: one('IPv4', 'IPv6') },
  flows: { service: text(3 * maximumName), from: text(), verdict: one('', ...verdicts) },
  send: { count: one(1, 100) },
  lesson: { id: text(), step: one(0, 1, 2, 3, 4, 5, 6, 7, 8, 9) },
  predict: { choice: one(0, 1, 2, 3) },
  exercise: { id: text() },
  check: {},
  // The server bounds the length of the whole command, and says when it is too long.
  apply: { yaml: text(Infinity) },
  clear: {},
}

/**
 * Parses a command of the page. Returns undefined for any other text, because any program of this
 * machine may send some.
 */
export function parsePageCommand(body: string): PageCommand | undefined {
  const fields = asObject(parseJson(body))
  const name = fields?.do
  if (!fields || typeof name !== 'string' || !isCommand(name)) return undefined
  const read = Object.entries<Reader<unknown>>(readers[name])
    // Only the step of a lesson may be left out.
    .filter(([field]) => field !== 'step' || Object.hasOwn(fields, field))
    .map(([field, reader]) => [field, reader(fields[field])] as const)
  if (read.some(([, value]) => value === undefined)) return undefined
  return { do: name, ...Object.fromEntries(read) } as PageCommand
}

function isCommand(name: string): name is PageCommand['do'] {
  return Object.hasOwn(readers, name)
}

function one<const T>(...allowed: readonly T[]): Reader<T> {
  return (value) => allowed.find((each) => each === value)
}

function text(maximum = maximumName): Reader<string> {
  return (value) => (typeof value === 'string' && value.length < maximum ? value : undefined)
}

/** A few short texts, such as CIDRs; the API server checks those. */
function texts(most: number, length = 64): Reader<readonly string[]> {
  const isText = (each: unknown) => typeof each === 'string' && each.length < length
  return (value) =>
    Array.isArray(value) && value.length <= most && value.every(isText)
      ? (value as string[])
      : undefined
}
