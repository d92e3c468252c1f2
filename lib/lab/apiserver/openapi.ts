import type { JsonObject } from './json.js'
import { pathOf } from './target.js'
import { apiVersionOf, type ResourceKind } from './resources.js'

/**
 * As much of /openapi/v3 as kubectl needs before it applies: it looks for the parameter
 * `fieldValidation` of each kind's PATCH to know that the server validates by itself.
 */

export function openapiIndex(resources: readonly ResourceKind[]): JsonObject {
  const versions = [...new Set(resources.map(apiVersionOf))]
  const entries = versions.map((apiVersion) => {
    const path = apiVersion.includes('/') ? `apis/${apiVersion}` : `api/${apiVersion}`
    return [path, { serverRelativeURL: `/openapi/v3/${path}` }]
  })
  return { paths: Object.fromEntries(entries) as JsonObject }
}

export function openapiOf(
  apiVersion: string,
  resources: readonly ResourceKind[],
): JsonObject | undefined {
  const kinds = resources.filter((kind) => apiVersionOf(kind) === apiVersion)
  if (kinds.length === 0) return undefined
  const paths = kinds.map((kind) => {
    const namespace = kind.namespaced ? '{namespace}' : undefined
    return [`${pathOf(kind, namespace)}/{name}`, { patch: patchOperation(kind) }]
  })
  return {
    openapi: '3.0.0',
    info: { title: 'Kubernetes', version: 'v1' },
    paths: Object.fromEntries(paths) as JsonObject,
    components: { schemas: {} },
  }
}

function patchOperation(kind: ResourceKind): JsonObject {
  const { group, version } = kind
  return {
    'x-kubernetes-action': 'patch',
    'x-kubernetes-group-version-kind': { group, version, kind: kind.kind },
    parameters: [
      { name: 'fieldValidation', in: 'query', schema: { type: 'string', uniqueItems: true } },
      { name: 'dryRun', in: 'query', schema: { type: 'string', uniqueItems: true } },
    ],
    responses: { '200': { description: 'OK' } },
  }
}
