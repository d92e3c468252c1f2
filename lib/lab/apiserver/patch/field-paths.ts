import { isList, isObject, textAt, type Json, type JsonObject } from '../json.js'
import { isAtomicMap, isPrimitiveSet, listMapKeysOf, rootOf, type Place } from './list-keys.js'

/**
 * Sets of fields as in server-side apply: paths of steps such as `f:spec`,
 * `k:{"port":80,"protocol":"TCP"}` (the list item with these keys) and `v:"x"` (that value of a
 * set). A path is kept as one string, its steps joined by a character no step can contain.
 */
export type FieldPaths = ReadonlySet<string>

const joint = '\u0000'

/** The server owns these; no client manages them. */
const unmanaged: ReadonlySet<string> = new Set([
  'apiVersion',
  'kind',
  'status',
  ...[
    'name',
    'namespace',
    'generateName',
    'uid',
    'resourceVersion',
    'generation',
    'creationTimestamp',
    'deletionTimestamp',
    'deletionGracePeriodSeconds',
    'managedFields',
  ].map((field) => `metadata.${field}`),
])

/** Every field that an object gives a value, down to the leaves. */
export function fieldsOf(object: JsonObject): Map<string, Json> {
  const fields = new Map<string, Json>()
  collect(object, { steps: [], ...rootOf(textAt(object, 'apiVersion')) }, fields)
  return fields
}

interface SteppedPlace extends Place {
  readonly steps: readonly string[]
}

function collect(value: Json, place: SteppedPlace, fields: Map<string, Json>): void {
  const add = () => fields.set(place.steps.join(joint), value)
  if (isObject(value) && !isAtomicMap(place)) {
    const entries = Object.entries(value).filter(([, each]) => each !== undefined)
    if (entries.length === 0) add()
    for (const [name, each] of entries) {
      const names = [...place.names, name]
      if (each === undefined || unmanaged.has(names.join('.'))) continue
      collect(each, { ...place, steps: [...place.steps, `f:${name}`], names }, fields)
    }
    return
  }
  const keys = isList(value) ? listMapKeysOf(place) : undefined
  if (isList(value) && keys !== undefined && value.every(isObject)) {
    for (const item of value) {
      const steps = [...place.steps, itemStep(item, keys)]
      // The item itself is a field, too. It stays while a manager owns it.
      fields.set(steps.join(joint), null)
      collect(item, { ...place, steps }, fields)
    }
  } else if (isList(value) && isPrimitiveSet(place)) {
    for (const item of value) fields.set([...place.steps, valueStep(item)].join(joint), item)
  } else add()
}

/** Which item of a list that is a map: `k:{"port":80,"protocol":"TCP"}`. */
export function itemStep(item: JsonObject, keys: readonly string[]): string {
  const id = keys.map((key) => [key, item[key] ?? (key === 'protocol' ? 'TCP' : null)] as const)
  return `k:${JSON.stringify(Object.fromEntries(id))}`
}

export function valueStep(value: Json): string {
  return `v:${JSON.stringify(value)}`
}

export function stepsOf(path: string): readonly string[] {
  return path.split(joint)
}

export function isWithin(path: string, parent: string): boolean {
  return path.startsWith(parent + joint)
}

/** `.spec.ports[port=80,protocol="TCP"].name`, as kubectl prints a conflict. */
export function printPath(path: string): string {
  return stepsOf(path)
    .map((step) => {
      if (step.startsWith('f:')) return `.${step.slice(2)}`
      if (step.startsWith('v:')) return `[=${step.slice(2)}]`
      const id = JSON.parse(step.slice(2)) as JsonObject
      const pairs = Object.entries(id).map(([key, value]) => `${key}=${JSON.stringify(value)}`)
      return `[${pairs.join(',')}]`
    })
    .join('')
}

interface Branch {
  readonly children: Map<string, Branch>
  isField: boolean
}

/** The form in metadata.managedFields: nested objects, `{}` for a leaf, `.` for the node itself. */
export function toFieldsV1(fields: Iterable<string>): JsonObject {
  const root: Branch = { children: new Map(), isField: false }
  for (const path of fields) {
    let branch = root
    for (const step of stepsOf(path)) {
      const next = branch.children.get(step) ?? { children: new Map(), isField: false }
      branch.children.set(step, next)
      branch = next
    }
    branch.isField = true
  }
  const write = (branch: Branch): JsonObject => {
    const entries = [...branch.children].map(([step, child]) => [step, write(child)] as const)
    const isInner = branch.isField && entries.length > 0
    return Object.fromEntries(isInner ? [['.', {}] as const, ...entries] : entries)
  }
  return write(root)
}

export function fromFieldsV1(fields: Json | undefined): Set<string> {
  const found = new Set<string>()
  const visit = (value: Json | undefined, steps: readonly string[]) => {
    if (!isObject(value)) return
    const names = Object.keys(value)
    if (names.length === 0 && steps.length > 0) found.add(steps.join(joint))
    for (const name of names) {
      if (name === '.') found.add(steps.join(joint))
      else visit(value[name], [...steps, name])
    }
  }
  visit(fields, [])
  return found
}
