import { age, column, defaultColumns, nameColumn, type Column } from './columns/column.js'
import {
  at,
  isObject,
  listAt,
  objectAt,
  textAt,
  textsAt,
  type Json,
  type JsonObject,
} from './json.js'
import { isLabelName, isSubdomain } from './names.js'
import type { KubeObject } from './object.js'
import type { Strategy } from './registry.js'
import {
  apiVersionOf,
  collectionOf,
  resource,
  type ResourceKind,
  type ResourceTable,
  type StoredForm,
} from './resources.js'
import { causesOf, invalidValue, refuse, required, type Cause } from './status.js'
import type { VersionedStore } from './store.js'

/**
 * CustomResourceDefinitions: a kind is served from the moment its definition is stored until the
 * definition is removed. Objects are stored as they are sent; their schema is not checked.
 */

const collection = 'customresourcedefinitions.apiextensions.k8s.io'

/** Serves the kinds of the stored definitions. */
export function serveCustomResources(store: VersionedStore, resources: ResourceTable): void {
  store.subscribe(collection, ({ type, object, previous }) => {
    for (const kind of previous ? kindsOf(previous) : []) resources.remove(kind)
    for (const kind of type === 'DELETED' ? [] : kindsOf(object)) resources.add(kind)
  })
}

export function definitionStrategy(resources: ResourceTable): Strategy {
  return {
    prepare(object, _previous, kind) {
      refuse(kind, object, [...validate(object), ...collisions(object, resources)])
      return withStatus(object)
    },
    beforeRemoval(definition, { store }) {
      const [kind] = kindsOf(definition)
      if (kind === undefined) return
      const stored = collectionOf(kind)
      for (const object of store.list(stored)) store.remove(stored, object)
    },
  }
}

/** One kind for each served version, all of them views of one set of objects. */
function kindsOf(definition: KubeObject): readonly ResourceKind[] {
  const spec = objectAt(definition, 'spec')
  const names = objectAt(spec, 'names')
  const group = textAt(spec, 'group')
  const versions = listAt(spec, 'versions')
  const storage = versions.find((version) => at(version, 'storage') === true)
  // Converts like `strategy: None`: only the name of the version changes.
  const formOf = (apiVersion: string): StoredForm => ({
    collection: `${textAt(names, 'plural')}.${group}`,
    toStored: (object) => ({ ...object, apiVersion: `${group}/${textAt(storage, 'name')}` }),
    fromStored: (object) => ({ ...object, apiVersion }),
  })
  return versions
    .filter((version) => at(version, 'served') === true)
    .map((version) => {
      const apiVersion = `${group}/${textAt(version, 'name')}`
      const kind = textAt(names, 'kind')
      const all = [textAt(names, 'plural'), ...textsAt(names, 'shortNames')]
      return resource(apiVersion, kind, all.join(' '), {
        singular: textAt(names, 'singular') || kind.toLowerCase(),
        categories: textsAt(names, 'categories'),
        namespaced: textAt(spec, 'scope') !== 'Cluster',
        subresources: isObject(at(version, 'subresources', 'status')) ? ['status'] : [],
        countsGenerations: true,
        isCustom: true,
        columns: columnsOf(version),
        ...(version === storage ? {} : { storedForm: formOf(apiVersion) }),
      })
    })
}

function columnsOf(version: Json): readonly Column[] {
  const given = listAt(version, 'additionalPrinterColumns').flatMap((each) => {
    // Plain paths only; a column with a filter in it is left out.
    const path = /^(?:\.[\w-]+)+$/.exec(textAt(each, 'jsonPath'))?.[0].slice(1).split('.')
    const isDate = textAt(each, 'type') === 'date'
    if (path === undefined) return []
    return [
      column(textAt(each, 'name'), (object, now) => {
        const value = at(object, ...path) ?? ''
        const text = typeof value === 'object' ? JSON.stringify(value) : String(value)
        return isDate ? age(text, now) : text
      }),
    ]
  })
  return given.length === 0 ? defaultColumns : [nameColumn, ...given]
}

function validate(definition: KubeObject): readonly Cause[] {
  const spec = objectAt(definition, 'spec')
  const group = textAt(spec, 'group')
  const plural = textAt(spec, 'names', 'plural')
  const kind = textAt(spec, 'names', 'kind')
  const versions = listAt(spec, 'versions')
  const { name } = definition.metadata
  return causesOf(
    !(isSubdomain(group) && group.includes('.')) &&
      invalidValue('spec.group', group, 'should be a domain with at least one dot'),
    !isLabelName(plural) && invalidValue('spec.names.plural', plural, 'must be a DNS label'),
    !isLabelName(kind.toLowerCase()) &&
      invalidValue('spec.names.kind', kind, 'must be a DNS label but for its case'),
    name !== `${plural}.${group}` &&
      invalidValue('metadata.name', name, 'must be spec.names.plural+"."+spec.group'),
    !['Namespaced', 'Cluster'].includes(textAt(spec, 'scope')) &&
      required('spec.scope', 'Namespaced or Cluster'),
    ...versions.map((version, index) => {
      const label = textAt(version, 'name')
      const field = `spec.versions[${index}].name`
      return !isLabelName(label) && invalidValue(field, label, 'must be a DNS label')
    }),
    versions.filter((version) => at(version, 'storage') === true).length !== 1 &&
      invalidValue(
        'spec.versions',
        versions.length,
        'must have exactly one version marked as storage version',
      ),
  )
}

/** A definition must not use the path or the name of a built-in kind. */
function collisions(definition: KubeObject, resources: ResourceTable): readonly Cause[] {
  return kindsOf(definition).flatMap((kind) => {
    const version = apiVersionOf(kind)
    const present = resources.byPath(version, kind.plural) ?? resources.byKind(version, kind.kind)
    const isFree =
      present === undefined || (present.isCustom === true && present.plural === kind.plural)
    return isFree
      ? []
      : [invalidValue('spec.names.kind', kind.kind, `is a built-in kind of ${version}`)]
  })
}

function withStatus(definition: KubeObject): KubeObject {
  const names = objectAt(definition, 'spec', 'names')
  const kind = textAt(names, 'kind')
  const acceptedNames = { singular: kind.toLowerCase(), listKind: `${kind}List`, ...names }
  const condition = (type: string, reason: string): JsonObject => ({
    type,
    status: 'True',
    reason,
    message: '',
    lastTransitionTime: definition.metadata.creationTimestamp,
  })
  const storage = listAt(definition, 'spec', 'versions').find(
    (each) => at(each, 'storage') === true,
  )
  return {
    ...definition,
    status: {
      acceptedNames,
      conditions: [
        condition('NamesAccepted', 'NoConflicts'),
        condition('Established', 'InitialNamesAccepted'),
      ],
      storedVersions: [textAt(storage, 'name')],
    },
  }
}
