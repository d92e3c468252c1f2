/** Deep equality of plain data: primitives, arrays and objects of the same. */
export function isEqual(a: unknown, b: unknown): boolean {
  if (Object.is(a, b)) return true
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false
  if (Array.isArray(a)) {
    return (
      Array.isArray(b) && a.length === b.length && a.every((item, index) => isEqual(item, b[index]))
    )
  }
  const left = Object.entries(a)
  const right: Readonly<Record<string, unknown>> = { ...b }
  return (
    !Array.isArray(b) &&
    left.length === Object.keys(right).length &&
    left.every(([key, value]) => key in right && isEqual(value, right[key]))
  )
}
