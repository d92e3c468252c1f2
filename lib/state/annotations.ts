import { show } from './json.js'
import { printable } from './names.js'

/** Annotations `kube-proxy-ts/…`, by name without the prefix. The values are untrusted text. */
export type Options = Readonly<Record<string, string>>

export const optionPrefix = 'kube-proxy-ts/'

/** An annotation whose value has to make sense; otherwise it counts as absent, with a warning. */
export interface Annotation<T> {
  /** Without the prefix. */
  readonly name: string
  /** The valid values, in words. The warning names them. */
  readonly valid: string
  /** Returns undefined for a text that is not valid. */
  readonly parse: (text: string) => T | undefined
}

/** An annotation that takes one of a few words. */
export function wordAnnotation<const Word extends string>(
  name: string,
  words: readonly Word[],
): Annotation<Word> {
  return {
    name,
    valid: words.join(', '),
    parse: (text) => words.find((word) => word === text),
  }
}

/** The value of an annotation; undefined when it is absent or makes no sense. */
export function readAnnotation<T>(options: Options, annotation: Annotation<T>): T | undefined {
  const text = options[annotation.name]
  return text === undefined ? undefined : annotation.parse(text)
}

/** What is wrong with the value of an annotation; undefined when nothing is. */
export function annotationProblem(
  options: Options,
  annotation: Annotation<unknown>,
): string | undefined {
  const text = options[annotation.name]
  if (text === undefined || annotation.parse(text) !== undefined) return undefined
  return `annotation ${optionPrefix}${annotation.name}: ${printable(show(text))} has no effect; valid: ${annotation.valid}`
}

/** A whole number within the bounds, both included. */
export function numberAnnotation(name: string, from: number, to: number): Annotation<number> {
  return { name, valid: `${from}-${to}`, parse: (text) => numberOf(text, from, to) }
}

export function numberOf(text: string, from: number, to: number): number | undefined {
  const number = /^\d{1,7}$/.test(text) ? Number(text) : NaN
  return number >= from && number <= to ? number : undefined
}

/** A time within the bounds, both included, in milliseconds. */
export function durationAnnotation(name: string, from: number, to: number): Annotation<number> {
  return {
    name,
    valid: `${from}ms to ${to / 1000}s, such as 5s`,
    parse: (text) => durationOf(text, from, to),
  }
}

export function durationOf(text: string, from: number, to: number): number | undefined {
  const [, digits, unit = ''] = /^(\d{1,7})(ms|s|m)$/.exec(text) ?? []
  const ms = Number(digits) * (units[unit] ?? NaN)
  return ms >= from && ms <= to ? ms : undefined
}

const units: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000 }
