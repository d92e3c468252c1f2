/** Reads, compares and prints untrusted JSON. Every function takes any value and never throws. */

export type Json = Readonly<Record<string, unknown>>

/** The value of a JSON text; undefined if the text is no JSON. */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

export function asObject(value: unknown): Json | undefined {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
    ? (value as Json)
    : undefined
}

export function asArray(value: unknown): readonly unknown[] | undefined {
  return Array.isArray(value) ? value : undefined
}

export function asString(value: unknown): string | undefined {
  return typeof value === 'string' ? value : undefined
}

/** The strings of an array; other items are left out. */
export function strings(value: unknown): readonly string[] {
  return (asArray(value) ?? []).filter((item) => typeof item === 'string')
}

/** An integer within the bounds, both included. */
export function asInteger(value: unknown, from: number, to: number): number | undefined {
  return typeof value === 'number' && Number.isInteger(value) && value >= from && value <= to
    ? value
    : undefined
}

export function asBoolean(value: unknown): boolean | undefined {
  return typeof value === 'boolean' ? value : undefined
}

/** Deep equality of plain data: primitives, arrays and objects of the same. */
export function isEqual(a: unknown, b: unknown): boolean {
  if (Object.is(a, b)) return true
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false
  if (Array.isArray(a)) {
    return (
      Array.isArray(b) && a.length === b.length && a.every((item, index) => isEqual(item, b[index]))
    )
  }
  const left = a as Readonly<Record<string, unknown>>
  const right = b as Readonly<Record<string, unknown>>
  const keys = Object.keys(left)
  return (
    !Array.isArray(b) &&
    keys.length === Object.keys(right).length &&
    keys.every((key) => Object.hasOwn(right, key) && isEqual(left[key], right[key]))
  )
}

const maxShown = 60

/** A hostile value as text that is safe to print: JSON, cut to a length. */
export function show(value: unknown): string {
  let text: string | undefined
  try {
    text = JSON.stringify(value)
  } catch {
    // A cyclic value has no JSON; its type is shown instead.
  }
  text ??= typeof value
  return text.length > maxShown ? `${text.slice(0, maxShown)}…` : text
}
