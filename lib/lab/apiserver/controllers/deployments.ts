import { sha256 } from '../../../state/sha256.js'
import { numberAt, objectAt, textAt, type JsonObject } from '../json.js'
import type { Clients } from '../kind-client.js'
import { conditionOf, isReady, type KubeObject } from '../object.js'
import type { StoreEvent } from '../store.js'
import {
  controller,
  isOwnedBy,
  ownerReference,
  ownKey,
  type Controller,
  type ControllerDeps,
} from './controller.js'

const hashLabel = 'pod-template-hash'

const kinds = { deployments: ['apps/v1', 'Deployment'], pods: ['v1', 'Pod'] } as const

/** Deployments make pods without a ReplicaSet in between, and replace them one by one. */
export function deploymentController(deps: ControllerDeps): Controller {
  return controller(deps, kinds, (clients) => {
    const { deployments, pods } = clients
    const ofOwners = ({ object }: StoreEvent) => ownersOf(object)
    return {
      watched: [
        [deployments, ownKey],
        [pods, ofOwners],
      ],
      reconcile(key) {
        const deployment = deployments.get(key)
        if (deployment) scale(clients, deployment)
      },
    }
  })
}

function ownersOf(pod: KubeObject): readonly string[] {
  const { namespace, ownerReferences = [] } = pod.metadata
  return ownerReferences
    .filter((owner) => owner.kind === 'Deployment')
    .map((owner) => `${namespace ?? ''}\0${owner.name}`)
}

function scale({ deployments, pods }: Clients<keyof typeof kinds>, deployment: KubeObject): void {
  const wanted = numberAt(deployment, 'spec', 'replicas') ?? 1
  const template = objectAt(deployment, 'spec', 'template')
  const hash = hashOf(JSON.stringify(template))
  const all = pods
    .list()
    .filter((pod) => isOwnedBy(pod, deployment) && pod.metadata.deletionTimestamp === undefined)
  const current = all.filter((pod) => pod.metadata.labels?.[hashLabel] === hash)
  const old = all.filter((pod) => !current.includes(pod))
  const isRecreated = textAt(deployment, 'spec', 'strategy', 'type') === 'Recreate'

  // While old pods are replaced there is one more than wanted, so that no ready pod is missing.
  const room = old.length === 0 ? wanted : isRecreated ? 0 : wanted + 1 - old.length
  for (let missing = Math.min(wanted, room) - current.length; missing > 0; missing--) {
    pods.create(podOf(deployment, template, hash))
  }
  const surplus = readyLast(current).slice(0, Math.max(0, current.length - wanted))
  for (const pod of surplus) pods.delete(pod)
  const spare = isRecreated ? old.length : all.filter(isReady).length - wanted
  const unready = old.filter((pod) => !isReady(pod))
  const ready = old.filter(isReady).slice(0, Math.max(0, spare))
  for (const pod of [...unready, ...ready]) pods.delete(pod)

  deployments.updateStatus(deployment, statusOf(deployment, { current, all }))
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

/** Ready pods are removed last, so that scaling down disturbs least. */
function readyLast(pods: readonly KubeObject[]): readonly KubeObject[] {
  return pods.toSorted((left, right) => Number(isReady(left)) - Number(isReady(right)))
}

function statusOf(
  deployment: KubeObject,
  pods: { readonly current: readonly KubeObject[]; readonly all: readonly KubeObject[] },
): JsonObject {
  const wanted = numberAt(deployment, 'spec', 'replicas') ?? 1
  const ready = pods.all.filter(isReady).length
  const isComplete = pods.current.filter(isReady).length >= wanted
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
  const before = conditionOf(deployment, type)
  const since =
    textAt(before, 'status') === status
      ? textAt(before, 'lastTransitionTime')
      : new Date().toISOString()
  return { type, status, reason, message: '', lastTransitionTime: since, lastUpdateTime: since }
}

/** Ten hexadecimal digits, as in the names of pods. */
function hashOf(text: string): string {
  const bytes = Array.from(sha256(text).subarray(0, 5))
  return bytes.map((byte) => byte.toString(16).padStart(2, '0')).join('')
}
