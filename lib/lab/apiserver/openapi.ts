import type { JsonObject } from './json.js'
import { apiVersionOf, type ResourceKind } from './resources.js'
import { schemasOf } from './explain/schemas.js'
import { pathOf } from './target.js'

/**
 * The part of the OpenAPI documents that kubectl reads before it applies. It looks for the
 * parameter `fieldValidation` of each kind's PATCH, which means that the server validates. For `kubectl explain` the
 * documents of version 3 have the fields that this server knows. Those of version 2 have none: kubectl before 1.25 would
 * refuse all others. No PATCH names its bodies, so kubectl keeps to its own merge keys of lists.
 */

const parameters = ['dryRun', 'fieldValidation', 'fieldManager'] as const
const gvkExtension = 'x-kubernetes-group-version-kind'
const info = { title: 'Kubernetes', version: 'v1' }

/** /openapi/v3: the list of its documents, one for each group and version. */
export function openapiIndex(resources: readonly ResourceKind[]): JsonObject {
  const versions = [...new Set(resources.map(apiVersionOf))]
  const entries = versions.map((apiVersion) => {
    const path = apiVersion.includes('/') ? `apis/${apiVersion}` : `api/${apiVersion}`
    return [path, { serverRelativeURL: `/openapi/v3/${path}` }] as const
  })
  return { paths: Object.fromEntries(entries) }
}

export function openapiOf(
  apiVersion: string,
  resources: readonly ResourceKind[],
): JsonObject | undefined {
  const kinds = resources.filter((kind) => apiVersionOf(kind) === apiVersion)
  if (kinds.length === 0) return undefined
  const schema = { type: 'string', uniqueItems: true }
  const paths = {
    ...listPathsOf(kinds),
    ...pathsOf(kinds, { 'x-kubernetes-action': 'patch' }, { schema }),
  }
  return { openapi: '3.0.0', info, paths, components: { schemas: schemasOf(kinds) } }
}

/**
 * /openapi/v2: kubectl before 1.27 reads it before every apply. Later versions read it for kinds
 * that are not in v3, such as `List`.
 */
export function openapiV2(resources: readonly ResourceKind[]): JsonObject {
  return {
    swagger: '2.0',
    info,
    paths: pathsOf(resources, {}, { type: 'string' }),
    definitions: {},
  }
}

/** `kubectl explain` finds the kind of a resource by these paths. */
function listPathsOf(resources: readonly ResourceKind[]): JsonObject {
  const get = (kind: ResourceKind) => ({
    'x-kubernetes-action': 'list',
    responses: { '200': { description: 'OK' } },
    [gvkExtension]: gvkOf(kind),
  })
  return Object.fromEntries(resources.map((kind) => [listPath(kind), { get: get(kind) }]))
}

function pathsOf(
  resources: readonly ResourceKind[],
  operation: JsonObject,
  parameter: JsonObject,
): JsonObject {
  const entries = resources.map((kind) => {
    const patch = {
      ...operation,
      parameters: parameters.map((name) => ({ name, in: 'query', ...parameter })),
      responses: { '200': { description: 'OK' } },
      [gvkExtension]: gvkOf(kind),
    }
    return [`${listPath(kind)}/{name}`, { patch }] as const
  })
  return Object.fromEntries(entries)
}

/** Clients ask for this type with an `@`, which no media type may have. The answer has none. */
export const openapiV2Protobuf = {
  asked: /application\/com\.github\.proto-openapi\.spec\.v2[@.]v1\.0\+protobuf/,
  answered: 'application/com.github.proto-openapi.spec.v2.v1.0+protobuf',
}

/** The document as the message `openapi.v2.Document`, the only form that kubectl asks for. */
export function openapiV2AsProtobuf(resources: readonly ResourceKind[]): Buffer {
  const paths = resources.map((kind) => {
    const operation = [
      ...parameters.map((name) => field(8, field(1, field(2, field(3, queryParameter(name)))))),
      field(13, field(1, gvkExtension), field(2, field(2, JSON.stringify(gvkOf(kind))))),
    ]
    return field(2, field(1, `${listPath(kind)}/{name}`), field(2, field(8, ...operation)))
  })
  const title = field(2, field(1, 'Kubernetes'), field(2, 'v1'))
  return Buffer.concat([field(1, '2.0'), title, field(8, ...paths)])
}

function queryParameter(name: string): Buffer {
  return Buffer.concat([field(2, 'query'), field(4, name), field(6, 'string')])
}

function listPath(kind: ResourceKind): string {
  return pathOf(kind, kind.namespaced ? '{namespace}' : undefined)
}

function gvkOf({ group, version, kind }: ResourceKind): JsonObject {
  return { group, version, kind }
}

/**
 * The part of protobuf's wire format that these answers need. A message is a sequence of fields,
 * and each is a text or a message.
 */
function field(number: number, ...content: readonly (string | Buffer)[]): Buffer {
  const body = Buffer.concat(
    content.map((each) => (typeof each === 'string' ? Buffer.from(each) : each)),
  )
  // Wire type 2: a length, then so many bytes.
  return Buffer.concat([varint(number * 8 + 2), varint(body.length), body])
}

function varint(value: number): Buffer {
  const bytes: number[] = []
  let rest = value
  while (rest > 127) {
    bytes.push((rest % 128) + 128)
    rest = Math.floor(rest / 128)
  }
  return Buffer.from([...bytes, rest])
}
