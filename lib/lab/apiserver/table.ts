import type { Column } from './columns/column.js'
import type { JsonObject } from './json.js'
import type { KubeObject } from './object.js'
import { ApiError } from './status.js'

/** In what form the client wants objects: whole, as printed rows, or metadata only. */
export type Rendering = 'object' | 'table' | 'metadata'

/** How much of the object comes along with each row of a table. */
export type RowObject = 'None' | 'Metadata' | 'Object'

/** The first form of the Accept header that can be served; 406 when there is none. */
export function renderingOf(accept: string): Rendering {
  if (accept === '') return 'object'
  for (const range of accept.split(',')) {
    const [type = '', ...parameters] = range.split(';').map((part) => part.trim())
    if (type !== 'application/json' && type !== 'application/*' && type !== '*/*') continue
    const wanted = Object.fromEntries(
      parameters.map((parameter) => parameter.split('=', 2) as [string, string]),
    )
    const form: string = wanted['as'] ?? ''
    if (form === '') return 'object'
    if (wanted['g'] !== 'meta.k8s.io' || wanted['v'] !== 'v1') continue
    if (form === 'Table') return 'table'
    if (form === 'PartialObjectMetadata' || form === 'PartialObjectMetadataList') return 'metadata'
  }
  throw new ApiError(
    406,
    'NotAcceptable',
    'only the following media types are accepted: application/json',
  )
}

interface TableOptions {
  readonly columns: readonly Column[]
  /** Metadata if absent. */
  readonly rowObject?: RowObject
  readonly now: number
  /** In a watch only the first table names the columns; true if absent. */
  readonly withColumns?: boolean
  readonly listMeta: JsonObject
}

export function tableOf(
  objects: readonly KubeObject[],
  { columns, rowObject = 'Metadata', now, withColumns = true, listMeta }: TableOptions,
): JsonObject {
  const shown = (object: KubeObject) => (rowObject === 'Object' ? object : partialOf(object))
  return {
    kind: 'Table',
    apiVersion: 'meta.k8s.io/v1',
    metadata: listMeta,
    columnDefinitions: withColumns ? columns.map(definitionOf) : null,
    rows: objects.map((object) => ({
      cells: columns.map((column) => column.cell(object, now)),
      ...(rowObject === 'None' ? {} : { object: shown(object) }),
    })),
  }
}

export function partialOf(object: KubeObject): JsonObject {
  return {
    kind: 'PartialObjectMetadata',
    apiVersion: 'meta.k8s.io/v1',
    metadata: object.metadata,
  }
}

function definitionOf(column: Column): JsonObject {
  return {
    name: column.name,
    type: column.type,
    format: column.name === 'Name' ? 'name' : '',
    description: column.name,
    priority: column.priority,
  }
}
