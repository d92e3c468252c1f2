import type { ApiCall } from './api-call.js'
import { isObject, type JsonObject } from './json.js'
import type { KubeObject } from './object.js'
import type { Registry } from './registry.js'
import type { Target } from './target.js'
import { apiVersionOf, collectionOf, shownAs, type ResourceKind } from './resources.js'
import { parseFieldSelector, parseLabelSelector, type Match } from './selectors.js'
import { scaleOf } from './scale.js'
import { badRequest, expired, versionTooLarge } from './status.js'
import { partialOf, renderingOf, tableOf, type Rendering, type RowObject } from './table.js'

/** How one client wants to see objects. */
export interface View {
  readonly rendering: Rendering
  readonly rowObject: RowObject
  readonly matches: Match
}

export function viewOf(call: ApiCall, target: Target): View {
  const labels = parseLabelSelector(call.query.get('labelSelector') ?? '')
  const fields = parseFieldSelector(call.query.get('fieldSelector') ?? '')
  const { namespace, name } = target
  const includeObject = call.query.get('includeObject')
  return {
    rendering: renderingOf(call.request.headers.accept ?? ''),
    rowObject: includeObject === 'None' || includeObject === 'Object' ? includeObject : 'Metadata',
    matches: (object) =>
      (namespace === undefined || object.metadata.namespace === namespace) &&
      (name === undefined || object.metadata.name === name) &&
      labels(object) &&
      fields(shownAs(target.kind, object)),
  }
}

/** A request for objects of a kind. */
export interface Asked {
  readonly call: ApiCall
  readonly target: Target
  /** Of the object; empty for a collection. */
  readonly name: string
  readonly registry: Registry
}

/** Answers with one object in the form the client asked for. */
export function sendObject(
  { call, target: { kind }, registry }: Asked,
  object: KubeObject,
  code = 200,
): void {
  const rendering = renderingOf(call.request.headers.accept ?? '')
  if (rendering === 'object') call.send(code, shownAs(kind, object))
  else if (rendering === 'metadata') call.send(code, partialOf(object))
  else {
    const listMeta = { resourceVersion: object.metadata.resourceVersion }
    call.send(code, tableOf([object], { columns: kind.columns, now: registry.now(), listMeta }))
  }
}

export function sendOne(asked: Asked): void {
  const { call, target, name, registry } = asked
  const object = registry.get(target.kind, target.namespace, name)
  if (target.subresource === 'scale') call.send(200, scaleOf(object))
  else sendObject(asked, object)
}

interface Page {
  readonly items: readonly KubeObject[]
  readonly listMeta: JsonObject
}

/** All pages of one list show the same version, which the continue token names. */
interface ContinueToken {
  readonly version: number
  readonly offset: number
}

export function sendList({ call, target, registry }: Asked): void {
  const view = viewOf(call, target)
  const { items, listMeta } = pageOf(call, target.kind, registry, view.matches)
  if (view.rendering === 'table') {
    const { rowObject } = view
    const { columns } = target.kind
    call.send(200, tableOf(items, { columns, rowObject, now: registry.now(), listMeta }))
    return
  }
  const isPartial = view.rendering === 'metadata'
  const head = isPartial
    ? { kind: 'PartialObjectMetadataList', apiVersion: 'meta.k8s.io/v1' }
    : { kind: `${target.kind.kind}List`, apiVersion: apiVersionOf(target.kind) }
  // Item by item, so that a long list never exists as one string.
  const body = call.open(200, 'application/json')
  const opening = JSON.stringify({ ...head, metadata: listMeta }).slice(0, -1)
  let text = `${opening},"items":[`
  for (const [index, item] of items.entries()) {
    text += `${index === 0 ? '' : ','}${JSON.stringify(isPartial ? partialOf(item) : bare(shownAs(target.kind, item)))}`
    if (text.length > 64 * 1024) {
      body.write(text)
      text = ''
    }
  }
  body.write(`${text}]}\n`)
  body.end()
}

/** Items of a list do not repeat kind and version, as the real server leaves them out too. */
function bare(object: KubeObject): JsonObject {
  return { ...object, kind: undefined, apiVersion: undefined }
}

function pageOf(call: ApiCall, kind: ResourceKind, registry: Registry, matches: Match): Page {
  const { query } = call
  const limit = Number(query.get('limit') ?? 0)
  const token = parseToken(query.get('continue') ?? '')
  const version = token?.version ?? exactVersion(query, registry.store.version)
  const snapshot =
    version === registry.store.version
      ? registry.store.list(collectionOf(kind))
      : registry.store.listAt(collectionOf(kind), version)
  if (snapshot === undefined) {
    throw expired(
      token === undefined
        ? `The resourceVersion ${version} is too old`
        : 'The provided continue parameter is too old to display a consistent list result. You must start a new list without the continue parameter.',
    )
  }
  const all = snapshot.filter(matches)
  const offset = token?.offset ?? 0
  const items = limit > 0 ? all.slice(offset, offset + limit) : all.slice(offset)
  const remaining = all.length - offset - items.length
  const next: ContinueToken = { version, offset: offset + items.length }
  return {
    items,
    listMeta: {
      resourceVersion: String(version),
      ...(remaining > 0 ? { continue: encodeToken(next), remainingItemCount: remaining } : {}),
    },
  }
}

/**
 * The version that a list shows: the current one, unless resourceVersionMatch=Exact asks for an
 * earlier one.
 */
function exactVersion(query: URLSearchParams, current: number): number {
  const text = query.get('resourceVersion') ?? ''
  const match = query.get('resourceVersionMatch') ?? ''
  if (match !== '' && match !== 'Exact' && match !== 'NotOlderThan') {
    throw badRequest(`resourceVersionMatch: unsupported value ${JSON.stringify(match)}`)
  }
  if (text === '') {
    if (match !== '')
      throw badRequest('resourceVersionMatch is forbidden unless resourceVersion is provided')
    return current
  }
  const version = parseVersion(text)
  if (version > current) throw versionTooLarge(version, current)
  if (match === 'Exact' && version === 0) {
    throw badRequest('resourceVersionMatch "Exact" is forbidden for resourceVersion "0"')
  }
  return match === 'Exact' ? version : current
}

export function parseVersion(text: string): number {
  if (!/^\d{1,15}$/.test(text)) {
    throw badRequest(`Invalid value: ${JSON.stringify(text)}: resourceVersion is not a number`)
  }
  return Number(text)
}

function encodeToken(token: ContinueToken): string {
  return Buffer.from(JSON.stringify(token)).toString('base64url')
}

function parseToken(text: string): ContinueToken | undefined {
  if (text === '') return undefined
  try {
    const token: unknown = JSON.parse(Buffer.from(text, 'base64url').toString('utf8'))
    const { version, offset } = isObject(token as JsonObject) ? (token as JsonObject) : {}
    if (typeof version === 'number' && typeof offset === 'number') return { version, offset }
  } catch {
    // Falls through to the refusal below.
  }
  throw badRequest('continue key is not valid: use the token of the previous page unchanged')
}
