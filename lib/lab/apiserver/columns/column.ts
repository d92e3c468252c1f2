import { age } from '../age.js'
import { numberAt } from '../json.js'
import type { KubeObject } from '../object.js'

/** One column of `kubectl get`; the server prints, kubectl only aligns. */
export interface Column {
  readonly name: string
  readonly type: 'string' | 'integer'
  /** 1: only with `-o wide`. */
  readonly priority: 0 | 1
  readonly cell: (object: KubeObject, now: number) => string | number
}

export type Cell = Column['cell']

export function column(name: string, cell: Cell): Column {
  return { name, type: 'string', priority: 0, cell }
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
