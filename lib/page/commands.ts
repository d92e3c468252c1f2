import { podActions } from './view.js'
import type { PageCommand, Sender } from './view.js'

export const senders: readonly Sender[] = ['client-pod', 'node', 'outside', 'backend']
export const maximumReplicas = 5

/** Enough for every object the playground makes, and for many that somebody pastes. */
const maximumYaml = 100_000
const maximumName = 254

/** What came from the page as a command, or undefined: it may come from anybody on this machine. */
export function parsePageCommand(text: string): PageCommand | undefined {
  const fields = parseFields(text)
  const parser = fields && Object.entries(parsers).find(([name]) => name === fields.get('do'))?.[1]
  return parser?.(new Fields(fields))
}

/** The fields of a command that nobody has checked yet. */
class Fields {
  readonly #fields: ReadonlyMap<string, unknown>

  constructor(fields: ReadonlyMap<string, unknown> = new Map()) {
    this.#fields = fields
  }

  value(key: string): unknown {
    return this.#fields.get(key)
  }

  one<T>(key: string, allowed: readonly T[]): T | undefined {
    return allowed.find((value) => value === this.value(key))
  }

  text(key: string, maximum = maximumName): string | undefined {
    const value = this.value(key)
    return typeof value === 'string' && value.length < maximum ? value : undefined
  }
}

const addresses = ['ClusterIP', 'NodePort', 'LoadBalancer'] as const
const schedulers = ['rr', 'lc', 'sh', 'wrr']
const replicas = [0, 1, 2, 3, 4, maximumReplicas]

const parsers: {
  readonly [Do in PageCommand['do']]: (
    fields: Fields,
  ) => Extract<PageCommand, { readonly do: Do }> | undefined
} = {
  mode: (fields) => given(fields.text('mode'), (mode) => ({ do: 'mode', mode })),
  rules: (fields) => given(fields.text('mode'), (mode) => ({ do: 'rules', mode })),
  scheduler: (fields) =>
    given(fields.one('scheduler', schedulers), (scheduler) => ({ do: 'scheduler', scheduler })),
  select: (fields) =>
    given(fields.text('service', 2 * maximumName), (service) => ({ do: 'select', service })),
  pod: (fields) => {
    const pod = fields.text('pod')
    const action = fields.one('action', podActions)
    return pod !== undefined && action ? { do: 'pod', pod, action } : undefined
  },
  replicas: (fields) =>
    given(fields.one('count', replicas), (count) => ({ do: 'replicas', count })),
  affinity: (fields) => given(fields.one('on', [true, false]), (on) => ({ do: 'affinity', on })),
  continuous: (fields) =>
    given(fields.one('on', [true, false]), (on) => ({ do: 'continuous', on })),
  policy: (fields) => {
    const side = fields.one('side', ['internal', 'external'] as const)
    const value = fields.one('value', ['Cluster', 'Local'] as const)
    return side && value && { do: 'policy', side, value }
  },
  type: (fields) => given(fields.one('type', addresses), (type) => ({ do: 'type', type })),
  ranges: (fields) =>
    given(rangesIn(fields.value('ranges')), (ranges) => ({ do: 'ranges', ranges })),
  sender: (fields) => given(fields.one('sender', senders), (sender) => ({ do: 'sender', sender })),
  target: (fields) =>
    given(fields.one('target', addresses), (target) => ({ do: 'target', target })),
  family: (fields) =>
    given(fields.one('family', ['IPv4', 'IPv6'] as const), (family) => ({ do: 'family', family })),
  send: (fields) =>
    given(fields.one('count', [1, 100] as const), (count) => ({ do: 'send', count })),
  lesson: (fields) => given(fields.text('id'), (id) => ({ do: 'lesson', id })),
  apply: (fields) => given(fields.text('yaml', maximumYaml), (yaml) => ({ do: 'apply', yaml })),
  clear: () => ({ do: 'clear' }),
}

function given<T, C>(value: T | undefined, make: (value: T) => C): C | undefined {
  return value === undefined ? undefined : make(value)
}

/** A few CIDRs as text; whether they are any is for the API to say. */
function rangesIn(value: unknown): readonly string[] | undefined {
  if (!Array.isArray(value) || value.length > 16) return undefined
  const texts = value.filter(
    (each: unknown): each is string => typeof each === 'string' && each.length < 64,
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
