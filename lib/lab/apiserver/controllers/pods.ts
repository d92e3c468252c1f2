import { counted } from '../../../state/names.js'
import { listAt, numberAt, objectAt, textAt, textMapAt, type JsonObject } from '../json.js'
import { clientsOf, type Clients } from '../kind-client.js'
import { conditionOf, isReady, sinceOf, type KubeObject } from '../object.js'
import { matchesLabels } from '../selectors.js'
import { keyOf, type StoreEvent } from '../store.js'
import { ownKey, watch, type Controller, type ControllerDeps } from './controller.js'
import { hostIps, type PodEvent, type PodRuntime, type PodState } from './pod-runtime.js'

interface PodControllerDeps extends ControllerDeps {
  readonly runtime: PodRuntime
}

interface RunningPod {
  readonly uid: string
  readonly terminating: AbortController
  readonly killed: AbortController
  readonly ended: Promise<void>
}

/** Scheduler and kubelet in one: binds pods to nodes and lets a runtime run them. */
export class PodController implements Controller {
  readonly #deps: PodControllerDeps
  readonly #clients: Clients
  readonly #running = new Map<string, RunningPod>()
  /**
   * Uids of all pods that this controller has run. After a pause it starts them again, even if they
   * have an address.
   */
  readonly #own = new Set<string>()

  constructor(deps: PodControllerDeps) {
    this.#deps = deps
    this.#clients = clientsOf(deps.registry)
  }

  async run(signal: AbortSignal): Promise<void> {
    const { pods, nodes } = this.#clients
    const unbound = () =>
      pods
        .list()
        .filter((pod) => nodeOf(pod) === '')
        .map(keyOf)
    const work = {
      watched: [
        // Pods that wait are tried again when another pod is gone, or when a node changes.
        [
          pods,
          (event: StoreEvent) =>
            event.type === 'DELETED' ? [...ownKey(event), ...unbound()] : ownKey(event),
        ],
        [nodes, unbound],
      ] as const,
      reconcile: (key: string) => this.#reconcile(key),
    }
    await watch(this.#deps, work, signal)
    for (const pod of this.#running.values()) pod.killed.abort()
    await Promise.all([...this.#running.values()].map((pod) => pod.ended))
  }

  #reconcile(key: string): void {
    const pod = this.#clients.pods.get(key)
    const running = this.#running.get(key)
    if (pod === undefined || (running !== undefined && running.uid !== pod.metadata.uid)) {
      running?.killed.abort()
      if (running) this.#own.delete(running.uid)
      if (pod === undefined) return
    }
    if (pod.metadata.deletionTimestamp !== undefined) {
      if (running === undefined) this.#remove(pod)
      else this.#terminate(running, pod)
    } else if (nodeOf(pod) === '') {
      this.#schedule(pod)
    } else if (running === undefined && this.#isOurs(pod)) {
      this.#start(pod, this.#clients.nodes.get(nodeOf(pod)))
    }
  }

  /** A pod that is created with an address is not run here. */
  #isOurs(pod: KubeObject): boolean {
    return textAt(pod, 'status', 'podIP') === '' || this.#own.has(pod.metadata.uid ?? '')
  }

  #schedule(pod: KubeObject): void {
    const { pods, nodes } = this.#clients
    const all = nodes.list()
    const wanted = textMapAt(pod, 'spec', 'nodeSelector')
    const fitting = all.filter((node) => takesPods(node) && matchesLabels(node, wanted))
    const bound = pods.list().map(nodeOf)
    const load = (node: KubeObject) => bound.filter((name) => name === node.metadata.name).length
    const free = fitting.filter((node) => load(node) < roomOf(node))
    const [node] = free.toSorted((left, right) => load(left) - load(right))
    if (node !== undefined) {
      pods.update({ ...pod, spec: { ...objectAt(pod, 'spec'), nodeName: node.metadata.name } })
      return
    }
    if (fitting.length === 0) {
      const message = `0/${all.length} nodes are available: none is ready and fits`
      this.#wait(pod, { reason: 'FailedScheduling', message })
    } else {
      const rooms = fitting.map(
        (each) => `${each.metadata.name} has room for ${counted(roomOf(each), 'pod')}`,
      )
      const message = `${rooms.join(', ')}, and all is taken; scale down, and this pod starts`
      this.#wait(pod, { reason: 'NoRoom', message })
    }
  }

  /** The pod stays pending, and says why; an Event says it once. */
  #wait(pod: KubeObject, event: PodEvent): void {
    const before = conditionOf(pod, 'PodScheduled')
    if (textAt(before, 'message') === event.message) return
    const pending = condition(pod, 'PodScheduled', false, this.#deps.registry.timestamp())
    const conditions = [{ ...pending, reason: 'Unschedulable', message: event.message }]
    const status = { ...objectAt(pod, 'status'), phase: 'Pending', conditions }
    this.#clients.pods.updateStatus(pod, status)
    this.#warn(pod, event)
  }

  /** Writes a warning about a pod, where `kubectl describe` and `kubectl get events` find it. */
  #warn({ apiVersion, kind, metadata }: KubeObject, { reason, message }: PodEvent): void {
    const { name, namespace = 'default', uid = '' } = metadata
    const now = this.#deps.registry.timestamp()
    this.#clients.events.create({
      apiVersion: 'v1',
      kind: 'Event',
      metadata: { generateName: `${name}.`, namespace },
      involvedObject: { apiVersion, kind, name, namespace, uid },
      type: 'Warning',
      reason,
      message,
      count: 1,
      source: { component: 'playground' },
      firstTimestamp: now,
      lastTimestamp: now,
    })
  }

  #start(pod: KubeObject, node: KubeObject | undefined): void {
    const { pods } = this.#clients
    const key = keyOf(pod)
    const terminating = new AbortController()
    const killed = new AbortController()
    killed.signal.addEventListener('abort', () => terminating.abort(), { once: true })
    const report = (state: PodState) => this.#report(pod, state, node)
    const tell = (event: PodEvent) => this.#warn(pod, event)
    const life = { report, tell, terminating: terminating.signal, killed: killed.signal, node }
    const ended = this.#deps.runtime
      .run(pod, life)
      .catch((error: unknown) => this.#deps.onError(error))
      .then(() => {
        this.#running.delete(key)
        const last = pods.get(key)
        if (last === undefined) return
        // A new pod of the same name has waited for the end of this one.
        if (last.metadata.uid !== pod.metadata.uid) this.#start(last, node)
        else if (last.metadata.deletionTimestamp !== undefined) this.#remove(last)
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

  #remove(pod: KubeObject): void {
    if (this.#current(pod) === undefined) return
    this.#own.delete(pod.metadata.uid ?? '')
    this.#clients.pods.delete(pod, { gracePeriodSeconds: 0 })
  }

  #report(pod: KubeObject, state: PodState, node: KubeObject | undefined): void {
    const current = this.#current(pod)
    if (current === undefined) return
    const now = this.#deps.registry.timestamp()
    this.#clients.pods.updateStatus(current, statusOf(current, state, node, now))
  }

  /** The pod as it is stored now; undefined when it is gone, or another one has its name. */
  #current(pod: KubeObject): KubeObject | undefined {
    const current = this.#clients.pods.get(keyOf(pod))
    return current?.metadata.uid === pod.metadata.uid ? current : undefined
  }
}

export function nodeOf(pod: KubeObject): string {
  return textAt(pod, 'spec', 'nodeName')
}

/** A node takes any number of pods if its status has no limit. */
function roomOf(node: KubeObject): number {
  const room = textAt(node, 'status', 'allocatable', 'pods')
  return room === '' ? Infinity : Number(room)
}

function takesPods(node: KubeObject): boolean {
  // A node that was made by hand has no conditions; it counts as ready.
  const isUp = conditionOf(node, 'Ready') === undefined || isReady(node)
  return isUp && objectAt(node, 'spec')['unschedulable'] !== true
}

function condition(pod: KubeObject, type: string, isTrue: boolean, now: string) {
  const status = isTrue ? 'True' : 'False'
  const since = sinceOf(pod, type, status, now)
  return { type, status, lastProbeTime: null, lastTransitionTime: since }
}

function statusOf(
  pod: KubeObject,
  state: PodState,
  node: KubeObject | undefined,
  now: string,
): JsonObject {
  const { ready, ips } = state
  const [hostIp] = hostIps(node)
  return {
    ...objectAt(pod, 'status'),
    phase: 'Running',
    conditions: [
      condition(pod, 'PodReadyToStartContainers', true, now),
      condition(pod, 'Initialized', true, now),
      condition(pod, 'Ready', ready, now),
      condition(pod, 'ContainersReady', ready, now),
      condition(pod, 'PodScheduled', true, now),
    ],
    ...(hostIp === undefined ? {} : { hostIP: hostIp }),
    ...(ips.length === 0 ? {} : { podIP: ips[0] }),
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
