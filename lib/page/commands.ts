import { asInteger } from '../state/json.js'
import { verdicts } from '../observe/flows/line.js'
import { podActions } from './page-command.js'
import type { PageCommand } from './page-command.js'
import type { Sender } from './view.js'

const senders: readonly Sender[] = ['client-pod', 'node', 'outside', 'backend']

/** More than any playground has room for; pods without room wait. */
const maximumReplicas = 100

const maximumName = 254

type Fields = ReadonlyMap<string, unknown>

type Readers = {
  readonly [Name in PageCommand['do']]: (
    fields: Fields,
  ) => Extract<PageCommand, { readonly do: Name }> | undefined
}

const targets = ['ClusterIP', 'NodePort', 'LoadBalancer'] as const

/** How each command is read; undefined where a field is missing or is not allowed. */
const readers: Readers = {
  mode: (fields) => whole(text(fields, 'mode'), (mode) => ({ do: 'mode', mode })),
  rules: (fields) => whole(text(fields, 'mode'), (mode) => ({ do: 'rules', mode })),
  compare: (fields) =>
    whole(textsIn(fields.get('modes'), 2), (modes) => ({ do: 'compare', modes })),
  scheduler: (fields) =>
    whole(one(fields, 'scheduler', ['rr', 'lc', 'sh', 'wrr']), (scheduler) => ({
      do: 'scheduler',
      scheduler,
    })),
  select: (fields) =>
    whole(text(fields, 'service', 2 * maximumName), (service) => ({ do: 'select', service })),
  pod: (fields) => {
    const [pod, action] = [text(fields, 'pod'), one(fields, 'action', podActions)]
    return pod === undefined ? undefined : action && { do: 'pod', pod, action }
  },
  marks: (fields) =>
    whole(textsIn(fields.get('marks'), maximumReplicas, 4 * maximumName), (marks) => ({
      do: 'marks',
      marks,
    })),
  replicas: (fields) =>
    whole(asInteger(fields.get('count'), 0, maximumReplicas), (count) => ({
      do: 'replicas',
      count,
    })),
  affinity: (fields) => whole(one(fields, 'on', [true, false]), (on) => ({ do: 'affinity', on })),
  continuous: (fields) =>
    whole(one(fields, 'on', [true, false]), (on) => ({ do: 'continuous', on })),
  policy: (fields) => {
    const side = one(fields, 'side', ['internal', 'external'] as const)
    const value = one(fields, 'value', ['Cluster', 'Local'] as const)
    return side && value && { do: 'policy', side, value }
  },
  type: (fields) => whole(one(fields, 'type', targets), (type) => ({ do: 'type', type })),
  ranges: (fields) =>
    whole(textsIn(fields.get('ranges'), 16), (ranges) => ({ do: 'ranges', ranges })),
  sender: (fields) => whole(one(fields, 'sender', senders), (sender) => ({ do: 'sender', sender })),
  target: (fields) => whole(one(fields, 'target', targets), (target) => ({ do: 'target', target })),
  family: (fields) =>
    whole(one(fields, 'family', ['IPv4', 'IPv6'] as const), (family) => ({ do: 'family', family })),
  flows: (fields) => {
    const [service, from] = [text(fields, 'service', 3 * maximumName), text(fields, 'from')]
    const verdict = one(fields, 'verdict', ['', ...verdicts] as const)
    if (service === undefined || from === undefined || verdict === undefined) return undefined
    return { do: 'flows', service, from, verdict }
  },
  send: (fields) =>
    whole(one(fields, 'count', [1, 100] as const), (count) => ({ do: 'send', count })),
  lesson: (fields) => {
    const id = text(fields, 'id')
    const step = one(fields, 'step', [undefined, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    if (id === undefined || (fields.has('step') && step === undefined)) return undefined
    return { do: 'lesson', id, ...(step === undefined ? {} : { step }) }
  },
  predict: (fields) =>
    whole(one(fields, 'choice', [0, 1, 2, 3]), (choice) => ({ do: 'predict', choice })),
  exercise: (fields) => whole(text(fields, 'id'), (id) => ({ do: 'exercise', id })),
  check: () => ({ do: 'check' }),
  // The server bounds the length of the whole command, and says when it is too long.
  apply: (fields) => whole(text(fields, 'yaml', Infinity), (yaml) => ({ do: 'apply', yaml })),
  clear: () => ({ do: 'clear' }),
}

/**
 * Parses a command of the page. Returns undefined for any other text, because any program of this
 * machine may send some.
 */
export function parsePageCommand(body: string): PageCommand | undefined {
  const fields = parseFields(body)
  const name = fields?.get('do')
  if (!fields || typeof name !== 'string' || !isCommand(name)) return undefined
  return readers[name](fields)
}

function isCommand(name: string): name is PageCommand['do'] {
  return Object.hasOwn(readers, name)
}

function one<T>(fields: Fields, key: string, allowed: readonly T[]): T | undefined {
  return allowed.find((value) => value === fields.get(key))
}

function text(fields: Fields, key: string, maximum = maximumName): string | undefined {
  const value = fields.get(key)
  return typeof value === 'string' && value.length < maximum ? value : undefined
}

function whole<T, Command>(
  value: T | undefined,
  commandWith: (value: T) => Command,
): Command | undefined {
  return value === undefined ? undefined : commandWith(value)
}

/** A few short texts, such as CIDRs; the API server checks those. */
function textsIn(value: unknown, most: number, length = 64): readonly string[] | undefined {
  if (!Array.isArray(value) || value.length > most) return undefined
  const texts = value.filter(
    (each: unknown): each is string => typeof each === 'string' && each.length < length,
  )
  return texts.length === value.length ? texts : undefined
}

function parseFields(text: string): ReadonlyMap<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null ? new Map(Object.entries(value)) : undefined
  } catch {
    return undefined
  }
}
