import { numberAt, objectAt, type JsonObject } from '../json.js'
import type { Clients } from '../kind-client.js'
import { isReady, type KubeObject } from '../object.js'
import { collectionKey, type StoreEvent } from '../store.js'
import {
  claim,
  controller,
  isOwnedBy,
  ownerReference,
  ownKey,
  type Controller,
  type ControllerDeps,
} from './controller.js'

/** ReplicaSets keep their number of pods. */
export function replicaSetController(deps: ControllerDeps): Controller {
  return controller(deps, (clients) => {
    const { sets, pods } = clients
    return {
      watched: [
        [sets, ownKey],
        [pods, ({ object }: StoreEvent) => ownerKeys(object, 'ReplicaSet')],
      ],
      reconcile(key) {
        const set = sets.get(key)
        if (set) keepNumber(clients, set)
      },
    }
  })
}

export function ownerKeys({ metadata }: KubeObject, kind: string): readonly string[] {
  const { namespace, ownerReferences = [] } = metadata
  return ownerReferences
    .filter((owner) => owner.kind === kind)
    .map((owner) => collectionKey(namespace, owner.name))
}

/** The pods of a set that are not on their way out. */
export function livingPods(pods: readonly KubeObject[], set: KubeObject): readonly KubeObject[] {
  return pods.filter((pod) => isOwnedBy(pod, set) && pod.metadata.deletionTimestamp === undefined)
}

function keepNumber({ sets, pods }: Clients, set: KubeObject): void {
  const wanted = numberAt(set, 'spec', 'replicas') ?? 1
  claim(pods, set)
  const own = livingPods(pods.list(), set)
  for (let missing = wanted - own.length; missing > 0; missing--) pods.create(podOf(set))
  for (const pod of readyLast(own).slice(0, Math.max(0, own.length - wanted))) pods.delete(pod)
  const ready = own.filter(isReady).length
  sets.updateStatus(set, {
    observedGeneration: set.metadata.generation,
    replicas: own.length,
    fullyLabeledReplicas: own.length,
    readyReplicas: ready,
    availableReplicas: ready,
  })
}

function podOf(set: KubeObject): JsonObject {
  const template = objectAt(set, 'spec', 'template')
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      ...objectAt(template, 'metadata'),
      generateName: `${set.metadata.name}-`,
      namespace: set.metadata.namespace,
      ownerReferences: [ownerReference(set)],
    },
    spec: objectAt(template, 'spec'),
  }
}

/** Ready pods are removed last, so that scaling down disturbs least. */
function readyLast(pods: readonly KubeObject[]): readonly KubeObject[] {
  return pods.toSorted((left, right) => Number(isReady(left)) - Number(isReady(right)))
}
