import { formatDuration, parseDuration } from './duration.js'
import type { FeatureGates } from './feature-gates.js'

/** How values of one kind are read from YAML and from flags, and written back. */
export interface Kind<V> {
  /** For messages: `a duration such as 30s`. */
  readonly name: string
  /** All values of this kind, where there are few. */
  readonly choices?: readonly string[]
  /** Advice about values that only another program has. */
  readonly advice?: Readonly<Record<string, string>>
  /** undefined: the value is not of this kind. */
  fromYaml(value: unknown): V | undefined
  fromText(text: string): V | undefined
  toYaml(value: V): unknown
}

/** The message about a wrong value; `text` is its beginning, with the value and its place. */
export function notOfKind(text: string, value: unknown, kind: Kind<unknown>): string {
  const known = typeof value === 'string' ? adviceAbout(value, kind) : undefined
  return `${text} is not ${kind.name}${known === undefined ? '' : `: ${known}`}`
}

/** Advice about a value that only another program has. */
export function adviceAbout(value: string, { advice = {} }: Kind<unknown>): string | undefined {
  return Object.hasOwn(advice, value) ? advice[value] : undefined
}

const identity = (value: unknown): unknown => value

export const stringKind: Kind<string> = {
  name: 'a string',
  fromYaml: (value) => (typeof value === 'string' ? value : undefined),
  fromText: (text) => text,
  toYaml: identity,
}

/** A file or a folder; empty: none. */
export const pathKind: Kind<string> = { ...stringKind }

export function choiceKind<V extends string>(
  choices: readonly V[],
  advice: Readonly<Record<string, string>> = {},
): Kind<V> {
  const find = (value: unknown) => choices.find((choice) => choice === value)
  return {
    choices,
    advice,
    name: `one of ${choices.map((choice) => (choice === '' ? '""' : choice)).join(', ')}`,
    fromYaml: find,
    fromText: find,
    toYaml: identity,
  }
}

/** The spellings that Go's ParseBool accepts. */
const booleans: Readonly<Record<string, boolean>> = {
  ...Object.fromEntries(['1', 't', 'T', 'true', 'TRUE', 'True'].map((text) => [text, true])),
  ...Object.fromEntries(['0', 'f', 'F', 'false', 'FALSE', 'False'].map((text) => [text, false])),
}

export const boolKind: Kind<boolean> = {
  name: 'true or false',
  fromYaml: (value) => (typeof value === 'boolean' ? value : undefined),
  fromText: (text) => booleans[text],
  toYaml: identity,
}

/** A whole number of Go: 16, 0x10, 0b10000, 0o20, 020 and, with a line between digits, 1_6. */
const goInteger = /^([+-]?)(0x(?:_?[\da-f])+|0b(?:_?[01])+|0o?(?:_?[0-7])+|0|[1-9](?:_?\d)*)$/i

export const intKind: Kind<number> = {
  name: 'a whole number',
  fromYaml: (value) => (isInt32(value) ? value : undefined),
  fromText: (text) => {
    const [, sign, digits] = goInteger.exec(text) ?? []
    const plain = digits?.replaceAll('_', '').replace(/^0(?=\d)/, '0o')
    const value = Number(plain) * (sign === '-' ? -1 : 1)
    return isInt32(value) ? value : undefined
  },
  toYaml: identity,
}

/** As a flag it is always decimal, unlike other numbers. */
export const verbosityKind: Kind<number> = {
  ...intKind,
  fromText: (text) => {
    const value = /^[+-]?\d+$/.test(text) ? Number(text) : undefined
    return isInt32(value) ? value : undefined
  },
}

export const floatKind: Kind<number> = {
  name: 'a number',
  fromYaml: (value) => (typeof value === 'number' && Number.isFinite(value) ? value : undefined),
  fromText: (text) => {
    const value = text.trim() === '' ? Number.NaN : Number(text)
    return Number.isFinite(value) ? value : undefined
  },
  toYaml: identity,
}

export const durationKind: Kind<number> = {
  name: 'a duration such as 30s',
  fromYaml: (value) => (typeof value === 'string' ? parseDuration(value) : undefined),
  fromText: parseDuration,
  toYaml: formatDuration,
}

/** The least time between two syncs; `measured`: it follows from the cost of the last sync. */
export type SyncPace = number | 'measured'

/** In a file 0 means that no time is set. As a flag it is a time like any other. */
export const paceKind: Kind<SyncPace> = {
  ...durationKind,
  fromYaml: (value) => {
    const ms = durationKind.fromYaml(value)
    return ms === 0 ? 'measured' : ms
  },
  toYaml: (value) => formatDuration(value === 'measured' ? 0 : value),
}

/** A number means nanoseconds here, as in component-base. */
export const logDurationKind: Kind<number> = {
  ...durationKind,
  fromYaml: (value) => (isInteger(value) ? value / 1e6 : durationKind.fromYaml(value)),
}

export const listKind: Kind<readonly string[]> = {
  name: 'a list of strings',
  fromYaml: (value) =>
    Array.isArray(value) && value.every((item) => typeof item === 'string') ? value : undefined,
  fromText: (text) => (text === '' ? [] : text.split(',').map((item) => item.trim())),
  toYaml: identity,
}

export const gatesKind: Kind<FeatureGates> = {
  name: 'a map of feature gates such as {Name: true}, as a flag Name=true,…',
  fromYaml: (value) => {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return undefined
    const entries = Object.entries(value)
    if (!entries.every(([, on]) => typeof on === 'boolean')) return undefined
    return Object.fromEntries(entries)
  },
  fromText: (text) => {
    const gates: [string, boolean][] = []
    for (const item of listKind.fromText(text) ?? []) {
      if (item === '') continue
      const [name = '', word = ''] = item.split('=', 2).map((side) => side.trim())
      const on = booleans[word]
      if (name === '' || on === undefined) return undefined
      gates.push([name, on])
    }
    return Object.fromEntries(gates)
  },
  toYaml: identity,
}

export interface VModule {
  readonly filePattern: string
  readonly verbosity: number
}

export const vmoduleKind: Kind<readonly VModule[]> = {
  name: 'a list of {filePattern, verbosity}, as a flag pattern=N,…',
  fromYaml: (value) => {
    if (!Array.isArray(value)) return undefined
    const modules = value.map((item: unknown) => vmoduleOf(item))
    return modules.every((item) => item !== undefined) ? modules : undefined
  },
  fromText: (text) => {
    const modules = (listKind.fromText(text) ?? []).map((item) => {
      const [filePattern = '', verbosity = ''] = item.split('=', 2)
      return vmoduleOf({ filePattern, verbosity: verbosityKind.fromText(verbosity) })
    })
    return modules.every((item) => item !== undefined) ? modules : undefined
  },
  toYaml: identity,
}

const quantityUnits: Readonly<Record<string, number>> = {
  '': 1,
  k: 1e3,
  M: 1e6,
  G: 1e9,
  Ki: 2 ** 10,
  Mi: 2 ** 20,
  Gi: 2 ** 30,
}

/** Bytes as a Kubernetes quantity: `0`, `512Ki`. */
export const quantityKind: Kind<number> = {
  name: 'a quantity such as 512Ki',
  fromYaml: (value) =>
    isInteger(value) ? value : typeof value === 'string' ? quantityKind.fromText(value) : undefined,
  fromText: (text) => {
    const match = /^(\d+)(|k|M|G|Ki|Mi|Gi)$/.exec(text)
    return match ? Number(match[1]) * (quantityUnits[match[2] ?? ''] ?? 1) : undefined
  },
  toYaml: (value) => String(value),
}

function vmoduleOf(item: unknown): VModule | undefined {
  if (typeof item !== 'object' || item === null) return undefined
  if (!('filePattern' in item) || !('verbosity' in item)) return undefined
  const { filePattern, verbosity } = item
  if (Object.keys(item).length > 2 || typeof filePattern !== 'string') return undefined
  if (filePattern === '' || !isInt32(verbosity) || verbosity < 0) return undefined
  return { filePattern, verbosity }
}

function isInteger(value: unknown): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value)
}

function isInt32(value: unknown): value is number {
  return isInteger(value) && value >= -(2 ** 31) && value < 2 ** 31
}
