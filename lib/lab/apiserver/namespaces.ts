import type { NewObject } from './object.js'
import type { Strategy } from './registry.js'
import { collectionOf } from './resources.js'

/** What a new cluster has. */
export const firstNamespaces = ['default', 'kube-node-lease', 'kube-public', 'kube-system']

/** A namespace goes with everything in it. */
export const namespaceStrategy: Strategy = {
  prepare: (object) => object,
  beforeRemoval({ metadata: { name } }, { store, resources }) {
    for (const collection of new Set(
      resources.all.filter((kind) => kind.namespaced).map(collectionOf),
    )) {
      for (const object of store.list(collection)) {
        if (object.metadata.namespace === name) store.remove(collection, object)
      }
    }
  },
}

export function namespaceObject(name: string): NewObject {
  return {
    apiVersion: 'v1',
    kind: 'Namespace',
    metadata: { name, labels: { 'kubernetes.io/metadata.name': name } },
    spec: { finalizers: ['kubernetes'] },
    status: { phase: 'Active' },
  }
}
