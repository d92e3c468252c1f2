import { ConfigError } from '../../errors.js'
import { conditionOf, type KubeObject } from '../apiserver/object.js'
import { numberAt, objectAt, textAt, withAt, type JsonObject } from '../apiserver/json.js'
import { clientsOf, type Clients } from '../apiserver/kind-client.js'
import { collectionKey } from '../apiserver/store.js'
import { nodeOf } from '../apiserver/controllers/pods.js'
import { ownerKeys } from '../apiserver/controllers/replica-sets.js'
import { processAnnotation, readyAnnotation } from './pod-state.js'
import { untilTrue } from './until-true.js'
import type { Registry } from '../apiserver/registry.js'

/** More than any playground has room for. */
const mostMarks = 100

interface Mark {
  /** Of the Deployment, in the store. */
  readonly owner: string
  readonly node: string
  readonly process: string
  readonly readiness: string
}

/**
 * What learners did to single pods of Deployments. Another cluster gives its pods other names, so a mark names
 * the Deployment and the node: `default_web_node-1_dark_ready`. No name of an object has a `_`.
 */
export class PodMarks {
  readonly #clients: Clients
  readonly #signal: AbortSignal

  constructor(registry: Registry, signal: AbortSignal) {
    this.#clients = clientsOf(registry)
    this.#signal = signal
  }

  /** A mark for every pod that differs from what its template says. */
  list(): readonly string[] {
    const marks = this.#pods().flatMap(({ pod, set, owner }) => {
      const words = wordsOf(pod)
      if (words === wordsOf(objectAt(set, 'spec', 'template'))) return []
      return `${owner.replace('\0', '_')}_${nodeOf(pod)}_${words}`
    })
    return marks.sort()
  }

  /**
   * Gives each mark to a pod of the same Deployment, on the same node if there is one. Waits for the pods, which
   * come some time after their Deployment.
   */
  async put(texts: readonly string[]): Promise<void> {
    const marks = texts.slice(0, mostMarks).map(markOf)
    const owners = new Set(marks.map(({ owner }) => owner))
    await untilTrue(() => [...owners].every((owner) => this.#isComplete(owner)), this.#signal)
    const free = this.#pods()
    const take = (mark: Mark, isFit: (pod: KubeObject) => boolean) => {
      const at = free.findIndex(({ pod, owner }) => owner === mark.owner && isFit(pod))
      const [taken] = at < 0 ? [] : free.splice(at, 1)
      if (taken) this.#write(taken.pod, mark)
      return taken !== undefined
    }
    const elsewhere = marks.filter((mark) => !take(mark, (pod) => nodeOf(pod) === mark.node))
    for (const mark of elsewhere) take(mark, () => true)
  }

  #write(pod: KubeObject, { process, readiness }: Mark): void {
    const at = (annotation: string) => ['metadata', 'annotations', annotation]
    const value = readiness === 'ready' ? 'true' : 'false'
    const ready = withAt(pod, at(readyAnnotation), value)
    this.#clients.pods.update(withAt(ready, at(processAnnotation), process))
  }

  /** Whether its pods are all there, in its newest version, and on a node if they have room. */
  #isComplete(owner: string): boolean {
    const deployment = this.#clients.deployments.get(owner)
    if (!deployment) return true
    const count = (...path: string[]) => numberAt(deployment, ...path)
    const wanted = count('spec', 'replicas') ?? 1
    return (
      count('status', 'observedGeneration') === deployment.metadata.generation &&
      count('status', 'replicas') === wanted &&
      count('status', 'updatedReplicas') === wanted &&
      this.#pods().every(({ pod }) => nodeOf(pod) !== '' || conditionOf(pod, 'PodScheduled'))
    )
  }

  /** The pods of Deployments that are not on their way out. */
  #pods() {
    const { pods, sets } = this.#clients
    return pods.list().flatMap((pod) => {
      if (pod.metadata.deletionTimestamp !== undefined) return []
      const set = ownerKeys(pod, 'ReplicaSet').flatMap((key) => sets.get(key) ?? [])[0]
      const owner = set && ownerKeys(set, 'Deployment')[0]
      return owner === undefined ? [] : [{ pod, set, owner }]
    })
  }
}

/** What the annotations of a pod or of a template ask for. */
function wordsOf(object: KubeObject | JsonObject): string {
  const wish = (key: string) => textAt(object, 'metadata', 'annotations', key)
  const process = wish(processAnnotation)
  const isUsual = process !== 'stopped' && process !== 'dark'
  const readiness = wish(readyAnnotation) === 'false' ? 'unready' : 'ready'
  return `${isUsual ? 'running' : process}_${readiness}`
}

const form = /^([a-z0-9-]+)_([a-z0-9.-]+)_([a-z0-9.-]*)_(running|stopped|dark)_(ready|unready)$/

function markOf(text: string): Mark {
  const [, namespace, name, node = '', process = '', readiness = ''] = form.exec(text) ?? []
  if (namespace === undefined || name === undefined) {
    const shown = JSON.stringify(text.slice(0, 100))
    throw new ConfigError(
      `mark a pod with ${shown}: it is not like default_web_node-1_dark_ready, so no pod is changed`,
    )
  }
  return { owner: collectionKey(namespace, name), node, process, readiness }
}
