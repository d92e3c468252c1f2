import { numberAt, textAt } from '../json.js'
import type { KubeObject } from '../object.js'

/** One column of `kubectl get`; the server makes the text, and kubectl only aligns it. */
export interface Column {
  readonly name: string
  readonly type: 'string' | 'integer'
  /** 1: only with `-o wide`. */
  readonly priority: 0 | 1
  readonly cell: (object: KubeObject, now: number) => string | number
}

export type KindColumns = Readonly<Record<string, readonly Column[]>>

type Cell = Column['cell']

export function column(name: string, cell: Cell): Column {
  return { name, type: 'string', priority: 0, cell }
}

/** A column that shows a text of the object. */
export function text(name: string, ...path: readonly string[]): Column {
  return column(name, (object) => textAt(object, ...path))
}

export function wide(name: string, cell: Cell): Column {
  return { name, type: 'string', priority: 1, cell }
}

export function count(name: string, ...path: readonly string[]): Column {
  return { name, type: 'integer', priority: 0, cell: (object) => numberAt(object, ...path) ?? 0 }
}

export const nameColumn = column('Name', (object) => object.metadata.name)
export const ageColumn = column('Age', (object, now) =>
  age(object.metadata.creationTimestamp ?? '', now),
)

export const defaultColumns: readonly Column[] = [nameColumn, ageColumn]

export const createdColumns: readonly Column[] = [
  nameColumn,
  column('Created At', (object) => object.metadata.creationTimestamp ?? '<unknown>'),
]

export function pairs(map: Readonly<Record<string, string>>): string {
  const entries = Object.entries(map).map(([key, value]) => `${key}=${value}`)
  return entries.length === 0 ? '<none>' : entries.sort().join(',')
}

/** A duration as kubectl's columns show it: two units at most, coarser with age. */
export function age(timestamp: string, now: number): string {
  const then = Date.parse(timestamp)
  if (Number.isNaN(then)) return '<unknown>'
  return formatAge(Math.max(0, Math.floor((now - then) / 1000)))
}

function formatAge(seconds: number): string {
  if (seconds < 120) return `${seconds}s`
  const minutes = Math.floor(seconds / 60)
  if (minutes < 10) return pair(minutes, 'm', seconds % 60, 's')
  if (minutes < 180) return `${minutes}m`
  const hours = Math.floor(minutes / 60)
  if (hours < 8) return pair(hours, 'h', minutes % 60, 'm')
  if (hours < 48) return `${hours}h`
  const days = Math.floor(hours / 24)
  if (days < 8) return pair(days, 'd', hours % 24, 'h')
  if (days < 365 * 2) return `${days}d`
  const years = Math.floor(days / 365)
  return years < 8 ? pair(years, 'y', days % 365, 'd') : `${years}y`
}

function pair(large: number, largeUnit: string, small: number, smallUnit: string): string {
  return small === 0 ? `${large}${largeUnit}` : `${large}${largeUnit}${small}${smallUnit}`
}
