/** Reading untrusted JSON: every function takes anything and never throws. */

export type Json = Readonly<Record<string, unknown>>

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

/** The strings of an array; anything else in it is left out. */
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

const maxShown = 60

/** A hostile value made safe to print: JSON, cut. */
export function show(value: unknown): string {
  let text: string | undefined
  try {
    text = JSON.stringify(value)
  } catch {
    // Cyclic or otherwise not JSON; the type must do.
  }
  text ??= typeof value
  return text.length > maxShown ? `${text.slice(0, maxShown)}…` : text
}
