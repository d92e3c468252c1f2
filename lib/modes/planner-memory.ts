import type { IpFamily } from '../state/ip.js'

/**
 * Keeps what a planner made from the facts of a family, until the facts change. Facts are compared
 * by value, because a tracker may build equal facts anew. `make` also gets what was kept before.
 */
export function memoryByFacts<Facts extends object, Memory>(
  make: (facts: Facts, before: Memory | undefined) => Memory,
): (family: IpFamily, facts: Facts) => Memory {
  const kept = new Map<IpFamily, { readonly text: string; readonly memory: Memory }>()
  return (family, facts) => {
    const text = JSON.stringify(facts, asText)
    const known = kept.get(family)
    if (known?.text === text) return known.memory
    const memory = make(facts, known?.memory)
    kept.set(family, { text, memory })
    return memory
  }
}

/** Replaces values for which JSON has no form. */
function asText(_: string, value: unknown): unknown {
  if (typeof value === 'bigint') return String(value)
  return value instanceof Set ? [...(value as ReadonlySet<unknown>)] : value
}
