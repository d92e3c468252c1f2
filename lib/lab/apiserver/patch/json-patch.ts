import { messageOf } from '../../../errors.js'
import { equalJson, isList, isObject, textAt, withAt, type Json } from '../json.js'
import { ApiError, badRequest } from '../status.js'

/** Applies RFC 6902, all operations or none: the document itself is never changed. */
export function applyJsonPatch(document: Json, patch: Json): Json {
  if (!isList(patch)) throw badRequest('a JSON patch is a list of operations')
  return patch.reduce<Json>((current, operation, index) => {
    try {
      return applyOperation(current, operation)
    } catch (cause) {
      throw new ApiError(
        422,
        'Invalid',
        `the server rejected our request due to an error in our request: operation ${index}: ${messageOf(cause)}`,
      )
    }
  }, document)
}

function applyOperation(document: Json, operation: Json): Json {
  const path = pointer(textAt(operation, 'path'))
  const value = isObject(operation) ? operation['value'] : undefined
  const name = textAt(operation, 'op')
  switch (name) {
    case 'add':
      return write(document, path, { value: needed(value), insert: true })
    case 'replace':
      read(document, path)
      return write(document, path, { value: needed(value), insert: false })
    case 'remove':
      read(document, path)
      return write(document, path, { value: undefined, insert: false })
    case 'test':
      if (!equalJson(read(document, path), needed(value))) throw new Error('the test failed')
      return document
    case 'copy':
    case 'move': {
      const from = pointer(textAt(operation, 'from'))
      const moved = read(document, from)
      const rest =
        name === 'copy' ? document : write(document, from, { value: undefined, insert: false })
      return write(rest, path, { value: moved, insert: true })
    }
    default:
      throw new Error(`unknown op ${JSON.stringify(name)}`)
  }
}

function needed(value: Json | undefined): Json {
  if (value === undefined) throw new Error('value is missing')
  return value
}

function pointer(text: string): readonly string[] {
  if (text === '') return []
  if (!text.startsWith('/')) throw new Error(`path ${JSON.stringify(text)} does not start with /`)
  return text
    .slice(1)
    .split('/')
    .map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'))
}

function read(document: Json, path: readonly string[]): Json {
  let current: Json | undefined = document
  for (const step of path) {
    if (isList(current)) current = current[indexIn(current, step)]
    else if (isObject(current) && Object.hasOwn(current, step)) current = current[step]
    else current = undefined
    if (current === undefined) throw new Error(`nothing is at /${path.join('/')}`)
  }
  return current
}

interface Change {
  /** Undefined removes. */
  readonly value: Json | undefined
  /** Whether to insert the value into a list, instead of replacing an item. */
  readonly insert: boolean
}

function write(document: Json, path: readonly string[], change: Change): Json {
  const [step, ...rest] = path
  if (step === undefined) return change.value ?? null
  if (isList(document)) return writeItem(document, step, rest, change)
  if (!isObject(document)) throw new Error(`${JSON.stringify(step)} is inside no object`)
  const present = Object.hasOwn(document, step) ? document[step] : undefined
  if (rest.length > 0 && present === undefined) {
    throw new Error(`nothing is at ${JSON.stringify(step)}`)
  }
  const next = rest.length === 0 ? change.value : write(present ?? null, rest, change)
  return withAt(document, [step], next)
}

function writeItem(
  list: readonly Json[],
  step: string,
  rest: readonly string[],
  change: Change,
): Json {
  if (rest.length > 0) {
    const index = indexIn(list, step)
    return list.with(index, write(list[index] ?? null, rest, change))
  }
  if (change.value === undefined) return list.toSpliced(indexIn(list, step), 1)
  if (!change.insert) return list.with(indexIn(list, step), change.value)
  const index = step === '-' ? list.length : indexIn([...list, null], step)
  return list.toSpliced(index, 0, change.value)
}

function indexIn(list: readonly Json[], step: string): number {
  const index = /^(0|[1-9]\d*)$/.test(step) ? Number(step) : -1
  if (index < 0 || index >= list.length) throw new Error(`index ${step} is out of bounds`)
  return index
}
