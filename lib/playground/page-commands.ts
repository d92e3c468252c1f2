import type { PageCommand, Sender } from './view.js'

export const senders: readonly Sender[] = ['client-pod', 'node', 'outside']
export const maximumReplicas = 5

/** What came from the page as a command, or undefined: it may come from anybody on this machine. */
export function parsePageCommand(text: string): PageCommand | undefined {
  const fields = parseFields(text)
  if (!fields) return undefined
  const read = <T>(key: string, allowed: readonly T[]) =>
    allowed.find((value) => value === fields.get(key))
  switch (fields.get('do')) {
    case 'mode':
      return withText(fields, 'mode', (mode) => ({ do: 'mode', mode }))
    case 'kill':
      return withText(fields, 'pod', (pod) => ({ do: 'kill', pod }))
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
    case 'sender': {
      const sender = read('sender', senders)
      return sender && { do: 'sender', sender }
    }
    case 'target': {
      const target = read('target', ['ClusterIP', 'NodePort'] as const)
      return target && { do: 'target', target }
    }
    case 'send': {
      const count = read('count', [1, 100] as const)
      return count && { do: 'send', count }
    }
    case 'clear':
      return { do: 'clear' }
    default:
      return undefined
  }
}

function parseFields(text: string): ReadonlyMap<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null ? new Map(Object.entries(value)) : undefined
  } catch {
    return undefined
  }
}

function withText(
  fields: ReadonlyMap<string, unknown>,
  key: string,
  make: (text: string) => PageCommand,
): PageCommand | undefined {
  const value = fields.get(key)
  return typeof value === 'string' && value.length < 254 ? make(value) : undefined
}
