import { at, numberAt, objectAt, textAt, withAt, type JsonObject } from '../json.js'
import type { Clients } from '../kind-client.js'
import { isReady, sinceOf, type KubeObject } from '../object.js'
import { keyOf, type StoreEvent } from '../store.js'
import {
  claim,
  controller,
  isOwnedBy,
  ownerReference,
  ownKey,
  type Controller,
  type ControllerDeps,
} from './controller.js'
import { livingPods, ownerKeys } from './replica-sets.js'
import { hashLabel, hashOf, isSameTemplate, templateIn, templateOf } from './templates.js'

const revisionKey = 'deployment.kubernetes.io/revision'
const causeKey = 'kubernetes.io/change-cause'
/** The default number of old sets that are kept for `kubectl rollout undo`. */
const historyLimit = 10

/** Deployments have a ReplicaSet for each version of their template, and replace pods one by one. */
export function deploymentController(deps: ControllerDeps): Controller {
  return controller(deps, (clients) => {
    const { deployments, sets, pods } = clients
    const ofSet = ({ object }: StoreEvent) => ownerKeys(object, 'Deployment')
    const ofPod = ({ object }: StoreEvent) =>
      ownerKeys(object, 'ReplicaSet').flatMap((key) => {
        const set = sets.get(key)
        return set ? ownerKeys(set, 'Deployment') : []
      })
    return {
      watched: [
        [deployments, ownKey],
        [sets, ofSet],
        [pods, ofPod],
      ],
      reconcile(key) {
        const deployment = deployments.get(key)
        if (deployment) rollOut(clients, deployment)
      },
    }
  })
}

function rollOut(clients: Clients, deployment: KubeObject): void {
  claim(clients.sets, deployment)
  const own = clients.sets.list().filter((set) => isOwnedBy(set, deployment))
  if (at(deployment, 'spec', 'paused') === true) {
    keepPaused(clients, deployment, own)
    return
  }
  const current = currentSet(clients, deployment, own)
  const others = own.filter(({ metadata }) => metadata.uid !== current.metadata.uid)
  const living = clients.pods.list()
  const podsOf = (set: KubeObject) => livingPods(living, set)
  const fresh = podsOf(current)
  const old = others.flatMap(podsOf)
  const all = [...fresh, ...old]
  const wanted = numberAt(deployment, 'spec', 'replicas') ?? 1
  const { most, fewest } = paceOf(deployment, wanted, old.length)
  const room = Math.max(most - old.length, fresh.length)
  setReplicas(clients, current, Math.min(wanted, room))
  let spare = all.filter(isReady).length - fewest
  for (const set of others) {
    const ready = podsOf(set).filter(isReady).length
    const leaving = Math.min(ready, Math.max(0, spare))
    spare -= leaving
    setReplicas(clients, set, ready - leaving)
  }
  forgetOldest(
    clients,
    deployment,
    others.filter((set) => podsOf(set).length === 0),
  )
  tellStatus(clients, deployment, { current: fresh, all })
}

/** A paused Deployment can be scaled; its pods keep their versions. */
function keepPaused(clients: Clients, deployment: KubeObject, own: readonly KubeObject[]): void {
  const used = own.filter((set) => (numberAt(set, 'spec', 'replicas') ?? 1) > 0)
  const newest = own.toSorted((left, right) => revisionOf(right) - revisionOf(left))[0]
  // In the middle of a rollout both versions stay as they are.
  const scaled = used.length > 1 ? undefined : (used[0] ?? newest)
  if (scaled) setReplicas(clients, scaled, numberAt(deployment, 'spec', 'replicas') ?? 1)
  const living = clients.pods.list()
  const podsOf = (set: KubeObject) => livingPods(living, set)
  const current = own.filter((set) => isSameTemplate(templateOf(set), templateIn(deployment)))
  const pods = { current: current.flatMap(podsOf), all: own.flatMap(podsOf) }
  tellStatus(clients, deployment, pods)
}

interface PodsOf {
  readonly current: readonly KubeObject[]
  readonly all: readonly KubeObject[]
}

function tellStatus({ deployments }: Clients, deployment: KubeObject, pods: PodsOf): void {
  const latest = deployments.get(keyOf(deployment))
  if (latest) deployments.updateStatus(latest, statusOf(latest, pods))
}

/** The set of the current template: an existing set, or a new one. */
function currentSet(
  { deployments, sets }: Clients,
  deployment: KubeObject,
  own: readonly KubeObject[],
): KubeObject {
  const template = templateIn(deployment)
  const known = own.find((set) => isSameTemplate(templateOf(set), template))
  const newest = Math.max(0, ...own.map(revisionOf))
  if (known && revisionOf(known) === newest) return keepCause(sets, deployment, known)
  const revision = String(newest + 1)
  const path = ['metadata', 'annotations', revisionKey]
  deployments.update(withAt(deployment, path, revision))
  return known
    ? sets.update(withAt(known, path, revision))
    : sets.create(setOf(deployment, template, revision))
}

function revisionOf({ metadata }: KubeObject): number {
  return Number(metadata.annotations?.[revisionKey] ?? 0)
}

/**
 * Copies the cause of a change to its set. Users write the cause after they change the template.
 */
function keepCause(sets: Clients['sets'], { metadata }: KubeObject, set: KubeObject): KubeObject {
  const cause = metadata.annotations?.[causeKey]
  if (cause === undefined || cause === set.metadata.annotations?.[causeKey]) return set
  return sets.update(withAt(set, ['metadata', 'annotations', causeKey], cause))
}

function setOf(deployment: KubeObject, template: JsonObject, revision: string): JsonObject {
  const hash = hashOf(template)
  const { name, namespace, annotations = {} } = deployment.metadata
  const cause = annotations[causeKey]
  return {
    apiVersion: 'apps/v1',
    kind: 'ReplicaSet',
    metadata: {
      name: `${name}-${hash}`,
      namespace,
      labels: { ...objectAt(template, 'metadata', 'labels'), [hashLabel]: hash },
      annotations: {
        [revisionKey]: revision,
        ...(cause === undefined ? {} : { [causeKey]: cause }),
      },
      ownerReferences: [ownerReference(deployment)],
    },
    spec: {
      replicas: 0,
      selector: withAt(objectAt(deployment, 'spec', 'selector'), ['matchLabels', hashLabel], hash),
      template: withAt(template, ['metadata', 'labels', hashLabel], hash),
    },
  }
}

function setReplicas({ sets }: Clients, set: KubeObject, count: number): void {
  if (numberAt(set, 'spec', 'replicas') === count) return
  sets.update(withAt(set, ['spec', 'replicas'], count))
}

function forgetOldest(
  { sets }: Clients,
  deployment: KubeObject,
  empty: readonly KubeObject[],
): void {
  const limit = numberAt(deployment, 'spec', 'revisionHistoryLimit') ?? historyLimit
  const byAge = empty.toSorted((left, right) => revisionOf(right) - revisionOf(left))
  for (const set of byAge.slice(Math.max(0, limit))) sets.delete(set)
}

function statusOf(deployment: KubeObject, pods: PodsOf): JsonObject {
  const isPaused = at(deployment, 'spec', 'paused') === true
  const wanted = numberAt(deployment, 'spec', 'replicas') ?? 1
  const ready = pods.all.filter(isReady).length
  const isAvailable =
    ready >= (isRecreated(deployment) ? wanted : paceOf(deployment, wanted, 0).fewest)
  const isComplete = pods.current.filter(isReady).length >= wanted
  const rollout = isComplete ? 'NewReplicaSetAvailable' : 'ReplicaSetUpdated'
  const progress = isPaused ? 'DeploymentPaused' : rollout
  return {
    observedGeneration: deployment.metadata.generation,
    replicas: pods.all.length,
    updatedReplicas: pods.current.length,
    readyReplicas: ready,
    availableReplicas: ready,
    unavailableReplicas: Math.max(0, wanted - ready),
    conditions: [
      condition(deployment, 'Available', isAvailable ? 'True' : 'False', 'MinimumReplicas'),
      condition(deployment, 'Progressing', isPaused ? 'Unknown' : 'True', progress),
    ],
  }
}

function condition(deployment: KubeObject, type: string, status: string, reason: string) {
  const since = sinceOf(deployment, type, status, new Date().toISOString())
  return { type, status, reason, message: '', lastTransitionTime: since, lastUpdateTime: since }
}

/** How many pods there may be while old ones are replaced, and how many of them have to be ready. */
interface Pace {
  readonly most: number
  readonly fewest: number
}

/** The default of maxSurge and maxUnavailable, in percent of the pods. */
const byDefault = 25

function isRecreated(deployment: KubeObject): boolean {
  return textAt(deployment, 'spec', 'strategy', 'type') === 'Recreate'
}

/** Rounds like Kubernetes: by default, fewer than four pods get one more, and none is missing. */
function paceOf(deployment: KubeObject, wanted: number, old: number): Pace {
  if (isRecreated(deployment)) {
    return { most: old === 0 ? wanted : 0, fewest: 0 }
  }
  const part = (key: string, round: (value: number) => number) => {
    const given = at(deployment, 'spec', 'strategy', 'rollingUpdate', key)
    if (typeof given === 'number') return given
    const percent = typeof given === 'string' ? Number.parseInt(given, 10) : NaN
    return round((wanted * (Number.isNaN(percent) ? byDefault : percent)) / 100)
  }
  const surge = part('maxSurge', Math.ceil)
  const missing = part('maxUnavailable', Math.floor)
  // If both are 0, no pod could ever be replaced.
  return { most: wanted + surge, fewest: wanted - (surge + missing === 0 ? 1 : missing) }
}
