import { createHash } from 'node:crypto'
import { at, listAt, numberAt, objectAt, textAt, type JsonObject } from '../json.js'
import type { KubeObject } from '../object.js'
import { collectionOf, type ResourceKind } from '../resources.js'
import type { StoreEvent } from '../store.js'
import {
  isOwnedBy,
  kindsOf,
  ownerReference,
  ownKey,
  runController,
  type Controller,
  type ControllerDeps,
} from './controller.js'

const hashLabel = 'pod-template-hash'

const needed = { deployments: ['apps/v1', 'Deployment'], pods: ['v1', 'Pod'] } as const

type Kinds = Readonly<Record<keyof typeof needed, ResourceKind>>

/** Deployments make pods without a ReplicaSet in between, and replace them one by one. */
export function deploymentController(deps: ControllerDeps): Controller {
  const { registry } = deps
  return {
    async run(signal) {
      const kinds = kindsOf(registry, needed)
      if (kinds === undefined) return
      const { deployments, pods } = kinds
      const watched = [
        { kind: deployments, keysOf: ownKey },
        { kind: pods, keysOf: ({ object }: StoreEvent) => ownersOf(object) },
      ]
      const reconcile = (key: string) => {
        const deployment = registry.store.get(collectionOf(deployments), key)
        if (deployment) scale(deps, kinds, deployment)
      }
      await runController(deps, watched, reconcile, signal)
    },
  }
}

function ownersOf(pod: KubeObject): readonly string[] {
  const { namespace, ownerReferences = [] } = pod.metadata
  return ownerReferences
    .filter((owner) => owner.kind === 'Deployment')
    .map((owner) => `${namespace ?? ''}\0${owner.name}`)
}

function scale({ registry }: ControllerDeps, kinds: Kinds, deployment: KubeObject): void {
  const wanted = numberAt(deployment, 'spec', 'replicas') ?? 1
  const template = objectAt(deployment, 'spec', 'template')
  const hash = createHash('sha256').update(JSON.stringify(template)).digest('hex').slice(0, 10)
  const pods = registry.store
    .list(collectionOf(kinds.pods))
    .filter((pod) => isOwnedBy(pod, deployment) && pod.metadata.deletionTimestamp === undefined)
  const current = pods.filter((pod) => pod.metadata.labels?.[hashLabel] === hash)
  const old = pods.filter((pod) => !current.includes(pod))
  const isRecreated = textAt(deployment, 'spec', 'strategy', 'type') === 'Recreate'
  const remove = (pod: KubeObject) =>
    registry.delete(kinds.pods, pod.metadata.namespace, pod.metadata.name)

  // One more than wanted while old ones are replaced, and never less that are ready.
  const room = old.length === 0 ? wanted : isRecreated ? 0 : wanted + 1 - old.length
  for (let missing = Math.min(wanted, room) - current.length; missing > 0; missing--) {
    registry.create(kinds.pods, podOf(deployment, template, hash))
  }
  for (const pod of readyLast(current).slice(0, Math.max(0, current.length - wanted))) remove(pod)
  const spare = isRecreated ? old.length : pods.filter(isPodReady).length - wanted
  const unready = old.filter((pod) => !isPodReady(pod))
  for (const pod of [...unready, ...old.filter(isPodReady).slice(0, Math.max(0, spare))])
    remove(pod)

  registry.update(
    kinds.deployments,
    { ...deployment, status: statusOf(deployment, { current, all: pods }) },
    { subresource: 'status' },
  )
}

function podOf(deployment: KubeObject, template: JsonObject, hash: string): JsonObject {
  const metadata = objectAt(template, 'metadata')
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      ...metadata,
      generateName: `${deployment.metadata.name}-${hash}-`,
      namespace: deployment.metadata.namespace,
      labels: { ...objectAt(metadata, 'labels'), [hashLabel]: hash },
      ownerReferences: [ownerReference(deployment)],
    },
    spec: objectAt(template, 'spec'),
  }
}

/** Those that serve go last, so that scaling down disturbs least. */
function readyLast(pods: readonly KubeObject[]): readonly KubeObject[] {
  return pods.toSorted((left, right) => Number(isPodReady(left)) - Number(isPodReady(right)))
}

export function isPodReady(pod: KubeObject): boolean {
  return listAt(pod, 'status', 'conditions').some(
    (condition) => textAt(condition, 'type') === 'Ready' && textAt(condition, 'status') === 'True',
  )
}

function statusOf(
  deployment: KubeObject,
  pods: { readonly current: readonly KubeObject[]; readonly all: readonly KubeObject[] },
): JsonObject {
  const wanted = numberAt(deployment, 'spec', 'replicas') ?? 1
  const ready = pods.all.filter(isPodReady).length
  const isComplete = pods.current.filter(isPodReady).length >= wanted
  return {
    observedGeneration: deployment.metadata.generation,
    replicas: pods.all.length,
    updatedReplicas: pods.current.length,
    readyReplicas: ready,
    availableReplicas: ready,
    unavailableReplicas: Math.max(0, wanted - ready),
    conditions: [
      condition(deployment, 'Available', ready >= wanted ? 'True' : 'False', 'MinimumReplicas'),
      condition(
        deployment,
        'Progressing',
        'True',
        isComplete ? 'NewReplicaSetAvailable' : 'ReplicaSetUpdated',
      ),
    ],
  }
}

function condition(deployment: KubeObject, type: string, status: string, reason: string) {
  const before = listAt(deployment, 'status', 'conditions').find(
    (each) => textAt(each, 'type') === type,
  )
  const since =
    at(before, 'status') === status
      ? textAt(before, 'lastTransitionTime')
      : new Date().toISOString()
  return { type, status, reason, message: '', lastTransitionTime: since, lastUpdateTime: since }
}
