import { defaultColumns, type Column } from './columns/column.js'
import type { NameRule } from './names.js'
import type { KubeObject } from './object.js'

/** A second version of a kind, stored in the form of the first. */
export interface StoredForm {
  /** The collection of the first version. */
  readonly collection: string
  readonly toStored: (object: KubeObject) => KubeObject
  readonly fromStored: (object: KubeObject) => KubeObject
}

/** A served kind, with everything that code for all kinds needs to know about it. */
export interface ResourceKind {
  /** Empty for the core group. */
  readonly group: string
  readonly version: string
  readonly kind: string
  readonly plural: string
  readonly singular: string
  readonly shortNames: readonly string[]
  readonly namespaced: boolean
  readonly subresources: readonly ('status' | 'scale')[]
  /** A client that creates one may set its status, as the kubelet does with that of its node. */
  readonly keepsFirstStatus?: boolean
  /** metadata.generation grows with each change outside of status. */
  readonly countsGenerations: boolean
  readonly nameRule: NameRule
  readonly columns: readonly Column[]
  /** Names of sets of kinds, such as `all`. */
  readonly categories: readonly string[]
  /** The kind is another view of objects that are stored in this form. */
  readonly storedForm?: StoredForm
  /** A warning to the client that creates one: what this server does not do for it. */
  readonly caution?: string
  /** No field is known by name, so lists are replaced as a whole and there is no strategic merge. */
  readonly isCustom?: boolean
}

type Extra = Partial<Omit<ResourceKind, 'group' | 'version' | 'kind' | 'plural' | 'shortNames'>>

/**
 * A row of the table; `names` are the plural one and the short ones. The defaults are the common
 * case: namespaced, no subresource.
 */
export function resource(
  groupVersion: string,
  kind: string,
  names: string,
  extra: Extra = {},
): ResourceKind {
  const [group = '', version] = groupVersion.split('/')
  const [plural = '', ...shortNames] = names.split(' ')
  return {
    group: version === undefined ? '' : group,
    version: version ?? group,
    kind,
    plural,
    singular: kind.toLowerCase(),
    shortNames,
    namespaced: true,
    subresources: [],
    countsGenerations: false,
    nameRule: 'subdomain',
    columns: defaultColumns,
    categories: [],
    ...extra,
  }
}

export function apiVersionOf(kind: ResourceKind): string {
  return kind.group === '' ? kind.version : `${kind.group}/${kind.version}`
}

/** The name of a kind's collection in the store. */
export function collectionOf(kind: ResourceKind): string {
  if (kind.storedForm) return kind.storedForm.collection
  return kind.group === '' ? kind.plural : `${kind.plural}.${kind.group}`
}

/** A stored object as this kind shows it. */
export function shownAs(kind: ResourceKind, object: KubeObject): KubeObject {
  return kind.storedForm ? kind.storedForm.fromStored(object) : object
}

/** The served kinds, found by path or by object; definitions of custom ones change them. */
export class ResourceTable {
  readonly #byPath = new Map<string, ResourceKind>()
  readonly #byKind = new Map<string, ResourceKind>()

  constructor(kinds: readonly ResourceKind[]) {
    for (const kind of kinds) this.add(kind)
  }

  get all(): readonly ResourceKind[] {
    return [...this.#byPath.values()]
  }

  /** Adds a kind, or replaces it. */
  add(kind: ResourceKind): void {
    this.#byPath.set(`${apiVersionOf(kind)}/${kind.plural}`, kind)
    this.#byKind.set(`${apiVersionOf(kind)}/${kind.kind}`, kind)
  }

  remove(kind: ResourceKind): void {
    this.#byPath.delete(`${apiVersionOf(kind)}/${kind.plural}`)
    this.#byKind.delete(`${apiVersionOf(kind)}/${kind.kind}`)
  }

  byPath(apiVersion: string, plural: string): ResourceKind | undefined {
    return this.#byPath.get(`${apiVersion}/${plural}`)
  }

  byKind(apiVersion: string, kind: string): ResourceKind | undefined {
    return this.#byKind.get(`${apiVersion}/${kind}`)
  }
}
