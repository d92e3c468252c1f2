import type { JsonObject } from './json.js'
import { field } from './protobuf/encode.js'
import { pathOf } from './target.js'
import type { ResourceKind } from './resources.js'

/**
 * /openapi/v2: before 1.27 kubectl reads it ahead of every apply, later ones for what v3 does not
 * name, such as a `List`. Kinds without a definition pass its check, and the merge keys of lists
 * then come from kubectl itself, which is why no definition is given. The paths say that the
 * server takes `dryRun` and `fieldValidation`.
 */

/** Clients ask for it with an `@`, which no media type may have; the answer has none. */
export const openapiV2Protobuf = {
  asked: /application\/com\.github\.proto-openapi\.spec\.v2[@.]v1\.0\+protobuf/,
  answered: 'application/com.github.proto-openapi.spec.v2.v1.0+protobuf',
}

const parameters = ['dryRun', 'fieldValidation', 'fieldManager'] as const
const gvkExtension = 'x-kubernetes-group-version-kind'

export function openapiV2(resources: readonly ResourceKind[]): JsonObject {
  const paths = resources.map((kind) => [patchPath(kind), { patch: patchOperation(kind) }] as const)
  return {
    swagger: '2.0',
    info: { title: 'Kubernetes', version: 'v1' },
    paths: Object.fromEntries(paths),
    definitions: {},
  }
}

function patchOperation(kind: ResourceKind): JsonObject {
  return {
    parameters: parameters.map((name) => ({ name, in: 'query', type: 'string' })),
    responses: { '200': { description: 'OK' } },
    [gvkExtension]: gvkOf(kind),
  }
}

/** The same as the message `openapi.v2.Document`, the only form that kubectl asks for. */
export function openapiV2AsProtobuf(resources: readonly ResourceKind[]): Buffer {
  const paths = resources.map((kind) => {
    const operation = [
      ...parameters.map((name) => field(8, field(1, field(2, field(3, queryParameter(name)))))),
      field(13, field(1, gvkExtension), field(2, field(2, JSON.stringify(gvkOf(kind))))),
    ]
    return field(2, field(1, patchPath(kind)), field(2, field(8, ...operation)))
  })
  const info = field(2, field(1, 'Kubernetes'), field(2, 'v1'))
  return Buffer.concat([field(1, '2.0'), info, field(8, ...paths)])
}

function queryParameter(name: string): Buffer {
  return Buffer.concat([field(2, 'query'), field(4, name), field(6, 'string')])
}

function patchPath(kind: ResourceKind): string {
  return `${pathOf(kind, kind.namespaced ? '{namespace}' : undefined)}/{name}`
}

function gvkOf({ group, version, kind }: ResourceKind): JsonObject {
  return { group, version, kind }
}
