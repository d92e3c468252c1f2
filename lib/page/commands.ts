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
  if (!fields) return undefined
  const read = <T>(key: string, allowed: readonly T[]) =>
    allowed.find((value) => value === fields.get(key))
  const textOf = (key: string, maximum = maximumName) => {
    const value = fields.get(key)
    return typeof value === 'string' && value.length < maximum ? value : undefined
  }
  switch (fields.get('do')) {
    case 'mode':
    case 'rules': {
      const kind = fields.get('do') === 'mode' ? 'mode' : 'rules'
      const mode = textOf('mode')
      return mode === undefined ? undefined : { do: kind, mode }
    }
    case 'scheduler': {
      const scheduler = read('scheduler', ['rr', 'lc', 'sh', 'wrr'] as const)
      return scheduler && { do: 'scheduler', scheduler }
    }
    case 'select': {
      const service = textOf('service', 2 * maximumName)
      return service === undefined ? undefined : { do: 'select', service }
    }
    case 'pod': {
      const pod = textOf('pod')
      const action = read('action', podActions)
      return pod === undefined ? undefined : action && { do: 'pod', pod, action }
    }
    case 'replicas': {
      const count = read('count', [0, 1, 2, 3, 4, maximumReplicas])
      return count === undefined ? undefined : { do: 'replicas', count }
    }
    case 'affinity':
    case 'continuous': {
      const name = fields.get('do') === 'affinity' ? 'affinity' : 'continuous'
      const on = read('on', [true, false])
      return on === undefined ? undefined : { do: name, on }
    }
    case 'policy': {
      const side = read('side', ['internal', 'external'] as const)
      const value = read('value', ['Cluster', 'Local'] as const)
      return side && value && { do: 'policy', side, value }
    }
    case 'type': {
      const type = read('type', ['ClusterIP', 'NodePort', 'LoadBalancer'] as const)
      return type && { do: 'type', type }
    }
    case 'ranges': {
      const ranges = rangesIn(fields.get('ranges'))
      return ranges && { do: 'ranges', ranges }
    }
    case 'sender': {
      const sender = read('sender', senders)
      return sender && { do: 'sender', sender }
    }
    case 'target': {
      const target = read('target', ['ClusterIP', 'NodePort', 'LoadBalancer'] as const)
      return target && { do: 'target', target }
    }
    case 'family': {
      const family = read('family', ['IPv4', 'IPv6'] as const)
      return family && { do: 'family', family }
    }
    case 'send': {
      const count = read('count', [1, 100] as const)
      return count && { do: 'send', count }
    }
    case 'lesson': {
      const id = textOf('id')
      return id === undefined ? undefined : { do: 'lesson', id }
    }
    case 'apply': {
      const yaml = textOf('yaml', maximumYaml)
      return yaml === undefined ? undefined : { do: 'apply', yaml }
    }
    case 'clear':
      return { do: 'clear' }
    default:
      return undefined
  }
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
