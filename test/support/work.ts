/**
 * How many elements arrays filter and sort, and maps take in, while `act` runs. A test of cost counts
 * work, because time depends on the machine.
 */
export function workOf(act: () => void): number {
  let count = 0
  const restore = [
    countCalls(Array.prototype, 'filter', (list) => (count += list.length)),
    countCalls(Array.prototype, 'sort', (list) => (count += list.length)),
    countCalls(Map.prototype, 'set', () => count++),
  ]
  try {
    act()
  } finally {
    for (const each of restore) each()
  }
  return count
}

function countCalls<T extends object>(
  prototype: T,
  name: keyof T & string,
  called: (on: T) => void,
): () => void {
  const original: unknown = prototype[name]
  if (typeof original !== 'function') throw new Error(`${name} is no function`)
  const put = (value: unknown) =>
    Object.defineProperty(prototype, name, { value, writable: true, configurable: true })
  put(function (this: T, ...rest: readonly unknown[]): unknown {
    called(this)
    const result: unknown = Reflect.apply(original, this, rest)
    return result
  })
  return () => put(original)
}
