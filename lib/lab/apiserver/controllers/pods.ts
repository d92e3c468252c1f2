import {
  isObject,
  listAt,
  numberAt,
  objectAt,
  textAt,
  textMapAt,
  type JsonObject,
} from '../json.js'
import type { KubeObject } from '../object.js'
import { collectionOf, type ResourceKind } from '../resources.js'
import { matchesLabels } from '../selectors.js'
import {
  runController,
  keyOf,
  kindsOf,
  ownKey,
  type Controller,
  type ControllerDeps,
} from './controller.js'
import type { PodRuntime, PodState } from './pod-runtime.js'

export interface PodControllerDeps extends ControllerDeps {
  readonly runtime: PodRuntime
}

interface RunningPod {
  readonly uid: string
  readonly terminating: AbortController
  readonly killed: AbortController
  readonly ended: Promise<void>
}

/** Scheduler and kubelet in one: binds pods to nodes and lets a runtime bring them to life. */
export class PodController implements Controller {
  readonly #deps: PodControllerDeps
  readonly #running = new Map<string, RunningPod>()
  /** Uids of the pods it has ever run: after a pause those are started again, address or not. */
  readonly #own = new Set<string>()

  constructor(deps: PodControllerDeps) {
    this.#deps = deps
  }

  async run(signal: AbortSignal): Promise<void> {
    const kinds = kindsOf(this.#deps.registry, { pods: ['v1', 'Pod'], nodes: ['v1', 'Node'] })
    if (kinds === undefined) return
    const { pods, nodes } = kinds
    const watched = [
      { kind: pods, keysOf: ownKey },
      // A new node may take what found no place before.
      { kind: nodes, keysOf: () => this.#unbound(pods) },
    ]
    await runController(this.#deps, watched, (key) => this.#reconcile(pods, nodes, key), signal)
    for (const pod of this.#running.values()) pod.killed.abort()
    await Promise.all([...this.#running.values()].map((pod) => pod.ended))
  }

  #unbound(pods: ResourceKind): readonly string[] {
    const all = this.#deps.registry.store.list(collectionOf(pods))
    return all.filter((pod) => textAt(pod, 'spec', 'nodeName') === '').map(keyOf)
  }

  #reconcile(pods: ResourceKind, nodes: ResourceKind, key: string): void {
    const { store } = this.#deps.registry
    const pod = store.get(collectionOf(pods), key)
    const running = this.#running.get(key)
    if (pod === undefined || (running !== undefined && running.uid !== pod.metadata.uid)) {
      running?.terminating.abort()
      running?.killed.abort()
      if (running) this.#own.delete(running.uid)
      if (pod === undefined) return
    }
    if (pod.metadata.deletionTimestamp !== undefined) {
      if (running === undefined) this.#remove(pods, pod)
      else this.#terminate(running, pod)
    } else if (textAt(pod, 'spec', 'nodeName') === '') {
      this.#schedule(pods, nodes, pod)
    } else if (running === undefined && this.#isOurs(pod)) {
      // A pod that came with an address is somebody else's to run.
      this.#start(pods, pod, store.get(collectionOf(nodes), textAt(pod, 'spec', 'nodeName')))
    }
  }

  #isOurs(pod: KubeObject): boolean {
    return textAt(pod, 'status', 'podIP') === '' || this.#own.has(pod.metadata.uid ?? '')
  }

  #schedule(pods: ResourceKind, nodes: ResourceKind, pod: KubeObject): void {
    const { registry } = this.#deps
    const all = registry.store.list(collectionOf(nodes))
    const wanted = textMapAt(pod, 'spec', 'nodeSelector')
    const fitting = all.filter((node) => isReady(node) && matchesLabels(node, wanted))
    const bound = registry.store
      .list(collectionOf(pods))
      .map((each) => textAt(each, 'spec', 'nodeName'))
    const load = (node: KubeObject) => bound.filter((name) => name === node.metadata.name).length
    const [node] = fitting.toSorted((left, right) => load(left) - load(right))
    if (node === undefined) {
      const message = `0/${all.length} nodes are available: none is ready and fits`
      const pending = condition('PodScheduled', false, registry.timestamp())
      const conditions = [{ ...pending, reason: 'Unschedulable', message }]
      const status = { ...objectAt(pod, 'status'), phase: 'Pending', conditions }
      registry.update(pods, { ...pod, status: keepTimes(status, pod) }, { subresource: 'status' })
      return
    }
    registry.update(pods, {
      ...pod,
      spec: { ...objectAt(pod, 'spec'), nodeName: node.metadata.name },
    })
  }

  #start(pods: ResourceKind, pod: KubeObject, node: KubeObject | undefined): void {
    const key = keyOf(pod)
    const terminating = new AbortController()
    const killed = new AbortController()
    killed.signal.addEventListener('abort', () => terminating.abort(), { once: true })
    const report = (state: PodState) => this.#report(pods, pod, state, node)
    const life = { report, terminating: terminating.signal, killed: killed.signal, node }
    const ended = this.#deps.runtime
      .run(pod, life)
      .catch((error: unknown) => this.#deps.onError(error))
      .then(() => {
        this.#running.delete(key)
        const last = this.#deps.registry.store.get(collectionOf(pods), key)
        if (last?.metadata.uid !== pod.metadata.uid) {
          // Its successor of the same name waited for it.
          if (last !== undefined) this.#start(pods, last, node)
        } else if (last?.metadata.deletionTimestamp !== undefined) this.#remove(pods, last)
      })
    this.#own.add(pod.metadata.uid ?? '')
    this.#running.set(key, { uid: pod.metadata.uid ?? '', terminating, killed, ended })
  }

  #terminate(running: RunningPod, pod: KubeObject): void {
    if (running.terminating.signal.aborted) return
    running.terminating.abort()
    const grace = (pod.metadata.deletionGracePeriodSeconds ?? 30) * 1000
    const timer = setTimeout(() => running.killed.abort(), grace)
    void running.ended.finally(() => clearTimeout(timer))
  }

  #remove(pods: ResourceKind, pod: KubeObject): void {
    const { namespace, name, uid } = pod.metadata
    if (this.#deps.registry.find(pods, namespace, name)?.metadata.uid !== uid) return
    this.#own.delete(uid ?? '')
    this.#deps.registry.delete(pods, namespace, name, { gracePeriodSeconds: 0 })
  }

  #report(
    pods: ResourceKind,
    pod: KubeObject,
    state: PodState,
    node: KubeObject | undefined,
  ): void {
    const { registry } = this.#deps
    const { namespace, name, uid } = pod.metadata
    const current = registry.find(pods, namespace, name)
    if (current === undefined || current.metadata.uid !== uid) return
    const status = keepTimes(statusOf(current, state, node, registry.timestamp()), current)
    registry.update(pods, { ...current, status }, { subresource: 'status' })
  }
}

function isReady(node: KubeObject): boolean {
  const conditions = listAt(node, 'status', 'conditions')
  const ready = conditions.find((each) => textAt(each, 'type') === 'Ready')
  // A node without status is one that somebody made by hand to have one.
  const isUp = ready === undefined || textAt(ready, 'status') === 'True'
  return isUp && objectAt(node, 'spec')['unschedulable'] !== true
}

function condition(type: string, isTrue: boolean, since: string) {
  return { type, status: isTrue ? 'True' : 'False', lastProbeTime: null, lastTransitionTime: since }
}

function statusOf(
  pod: KubeObject,
  state: PodState,
  node: KubeObject | undefined,
  now: string,
): JsonObject {
  const { ready, ips } = state
  const hostIp = listAt(node, 'status', 'addresses').find(
    (address) => textAt(address, 'type') === 'InternalIP',
  )
  return {
    ...objectAt(pod, 'status'),
    phase: 'Running',
    conditions: [
      condition('PodReadyToStartContainers', true, now),
      condition('Initialized', true, now),
      condition('Ready', ready, now),
      condition('ContainersReady', ready, now),
      condition('PodScheduled', true, now),
    ],
    ...(hostIp === undefined ? {} : { hostIP: textAt(hostIp, 'address') }),
    podIP: ips[0],
    podIPs: ips.map((ip) => ({ ip })),
    startTime: textAt(pod, 'status', 'startTime') || now,
    containerStatuses: listAt(pod, 'spec', 'containers').map((container, index) => ({
      name: textAt(container, 'name'),
      image: textAt(container, 'image'),
      imageID: '',
      ready,
      started: true,
      restartCount:
        numberAt(listAt(pod, 'status', 'containerStatuses')[index], 'restartCount') ?? 0,
      state: { running: { startedAt: textAt(pod, 'status', 'startTime') || now } },
    })),
  }
}

/** A condition that did not change keeps the time at which it did. */
function keepTimes(status: JsonObject, before: KubeObject): JsonObject {
  const old = listAt(before, 'status', 'conditions')
  const conditions = listAt(status, 'conditions').map((next) => {
    const same = old.find((each) => textAt(each, 'type') === textAt(next, 'type'))
    if (!isObject(next) || textAt(same, 'status') !== textAt(next, 'status')) return next
    return { ...next, lastTransitionTime: textAt(same, 'lastTransitionTime') }
  })
  return { ...status, conditions }
}
