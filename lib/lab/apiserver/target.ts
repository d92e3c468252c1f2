import { apiVersionOf, type ResourceKind, type ResourceTable } from './resources.js'

/** What a path names. */
export interface Target {
  readonly kind: ResourceKind
  /** Undefined: of all namespaces, or outside namespaces. */
  readonly namespace: string | undefined
  readonly name: string | undefined
  readonly subresource: string | undefined
}

/** `/api/v1/namespaces/x/services/y/status` and its like; undefined when nothing is served there. */
export function parseTarget(path: string, resources: ResourceTable): Target | undefined {
  const parts = path.split('/').filter((part) => part !== '')
  const [root, ...rest] = parts.map(decode)
  const versionParts = root === 'api' ? 1 : root === 'apis' ? 2 : 0
  if (versionParts === 0 || rest.length <= versionParts) return undefined
  const apiVersion = rest.slice(0, versionParts).join('/')
  const steps = rest.slice(versionParts)

  const [first, namespace, ...inside] = steps
  if (first === 'namespaces' && namespace !== undefined && inside.length > 0) {
    const found = targetOf(resources, apiVersion, inside, namespace)
    // `/namespaces/x/status` is no resource of that namespace but a part of the namespace itself.
    if (found !== undefined) return found
  }
  return targetOf(resources, apiVersion, steps, undefined)
}

function targetOf(
  resources: ResourceTable,
  apiVersion: string,
  steps: readonly string[],
  namespace: string | undefined,
): Target | undefined {
  const [plural = '', name, subresource, ...more] = steps
  const kind = resources.byPath(apiVersion, plural)
  if (kind === undefined || more.length > 0) return undefined
  if (
    kind.namespaced !== (namespace !== undefined) &&
    (namespace !== undefined || name !== undefined)
  ) {
    return undefined
  }
  return { kind, namespace, name, subresource }
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part)
  } catch {
    // Not valid percent encoding: nothing can have that name.
    return part
  }
}

/** The path of a kind's collection, as discovery and links give it. */
export function pathOf(kind: ResourceKind, namespace?: string): string {
  const root = kind.group === '' ? '/api' : '/apis'
  const scope = namespace === undefined ? '' : `/namespaces/${namespace}`
  return `${root}/${apiVersionOf(kind)}${scope}/${kind.plural}`
}
