import { counted } from '../../state/names.js'
import { aborted, pause } from '../../async.js'
import { messageOf } from '../../errors.js'
import { podNameOf, podWishOf } from './pod-state.js'
import { PodLogs } from './pod-logs.js'
import type { PodServer, TestBed } from './test-bed.js'
import type { KubeObject } from '../apiserver/object.js'
import type { PodLife, PodRuntime } from '../apiserver/controllers/pod-runtime.js'
import { keyOf, type VersionedStore } from '../apiserver/store.js'
import { listAt, numberAt, textAt } from '../apiserver/json.js'
import type { PodRoom } from './cluster-layout.js'

type PodPlaces = Pick<TestBed, 'layout' | 'serve' | 'stopServing' | 'goDark'>

/** Runs the pods of the API server in the rooms of a cluster, as backends that tell their name. */
export class PlaygroundPods implements PodRuntime {
  readonly #testBed: PodPlaces
  /** The name of the pod in each room. */
  readonly #podIn = new Map<PodRoom, string>()
  /** The ports on which the pod of each room answers. */
  readonly #serving = new Map<PodRoom, readonly number[]>()
  readonly #dark = new Set<PodRoom>()
  /** For `kubectl logs`. */
  readonly log = new PodLogs()
  #roomFreed = new AbortController()
  #store: VersionedStore | undefined

  constructor(testBed: PodPlaces) {
    this.#testBed = testBed
  }

  /** Follows the annotations of pods, with which learners control them. */
  follow(store: VersionedStore): void {
    this.#store = store
  }

  /** The room of a pod, by its name on the page. */
  roomOf(pod: string): PodRoom | undefined {
    return [...this.#podIn].find(([, name]) => name === pod)?.[0]
  }

  serves(ip: string, port: number): boolean {
    return [...this.#serving].some(
      ([room, ports]) =>
        room.addresses.includes(ip) && ports.includes(port) && !this.#dark.has(room),
    )
  }

  async run(pod: KubeObject, life: PodLife): Promise<void> {
    const name = podNameOf(pod)
    const room = await this.#moveIn(name, life)
    if (room === undefined) return
    try {
      life.report({ ips: room.addresses, ready: false })
      await this.#live(pod, room, life)
      // Connections that were sent here a moment ago still get their answer.
      await pause(lingerMs, life.killed)
      await this.#stopServing(room, name)
    } finally {
      this.#podIn.delete(room)
      this.log.forget(name)
      this.#roomFreed.abort()
      this.#roomFreed = new AbortController()
    }
  }

  /** Follows the annotations of the pod until it is terminated. */
  async #live(pod: KubeObject, room: PodRoom, life: PodLife): Promise<void> {
    const testBed = this.#testBed
    const ips = room.addresses
    const { uid } = pod.metadata
    const name = podNameOf(pod)
    const ports = portsOf(pod)
    // The annotations may have changed while the pod waited for its room.
    let wish = podWishOf(this.#store?.get('pods', keyOf(pod)) ?? pod)
    let changed = new AbortController()
    const unsubscribe = this.#store?.subscribe('pods', ({ object }) => {
      if (object.metadata.uid !== uid) return
      wish = podWishOf(object)
      changed.abort()
    })
    let runs = false
    let isDark = false
    const goDark = async (shall: boolean) => {
      if (shall !== isDark) await testBed.goDark?.(room, shall)
      if (shall) this.#dark.add(room)
      else this.#dark.delete(room)
      isDark = shall
    }
    try {
      while (!life.terminating.aborted) {
        changed = new AbortController()
        const { runs: shallRun, isReady } = wish
        if (shallRun !== runs) {
          if (shallRun) await this.#serve(room, { name, ports }, life)
          else {
            await this.#stopServing(room, name)
            // A kubelet takes this long to notice that its probe gets no answer.
            await pause(probeMs, life.terminating)
          }
          runs = shallRun
        }
        await goDark(wish.isDark)
        life.report({ ips, ready: isReady })
        await aborted(AbortSignal.any([life.terminating, changed.signal]))
      }
    } finally {
      unsubscribe?.()
      // The next pod in this room must get packets.
      await goDark(false)
    }
  }

  /** A pod whose ports cannot be opened runs without them, and an Event says so. */
  async #serve(room: PodRoom, server: PodServer, { tell }: PodLife): Promise<void> {
    try {
      await this.#testBed.serve(room, server, (answered) =>
        this.log.answered(server.name, answered),
      )
      this.#serving.set(room, server.ports)
      this.log.started(server.name, server.ports)
    } catch (error) {
      const ports = server.ports.join(', ')
      const why = `listen on ${ports}: ${messageOf(error)}; name another containerPort`
      tell({ reason: 'FailedToListen', message: why })
    }
  }

  async #stopServing(room: PodRoom, name: string): Promise<void> {
    this.#serving.delete(room)
    await this.#testBed.stopServing(room, name)
  }

  /** A free room on the pod's node; waits for one, as a pod that is pending does. */
  async #moveIn(name: string, life: PodLife): Promise<PodRoom | undefined> {
    const node = life.node?.metadata.name ?? ''
    const candidates = this.#testBed.layout.rooms[node] ?? []
    const isFull = () => candidates.every((room) => this.#podIn.has(room))
    if (isFull()) {
      const message = `${node} has room for ${counted(candidates.length, 'pod')} in this playground, and all is taken; scale down, and this pod starts`
      life.tell({ reason: 'NoRoom', message })
    }
    while (!life.terminating.aborted) {
      const free = candidates.find((room) => !this.#podIn.has(room))
      if (free !== undefined) {
        this.#podIn.set(free, name)
        return free
      }
      await aborted(AbortSignal.any([life.terminating, this.#roomFreed.signal]))
    }
    return undefined
  }
}

const lingerMs = 1500
const probeMs = 1500

/** The most common ports of images, for pods whose containers name no port. */
const usualPorts: readonly number[] = [80, 443, 3000, 5000, 8000, 8080, 8081, 8443, 9090]

/** The ports on which a pod answers: those that its containers name, or else the usual ones. */
function portsOf(pod: KubeObject): readonly number[] {
  const named = listAt(pod, 'spec', 'containers')
    .flatMap((container) => listAt(container, 'ports'))
    .filter((port) => ['', 'TCP', 'UDP'].includes(textAt(port, 'protocol')))
    .flatMap((port) => numberAt(port, 'containerPort') ?? [])
    .filter((port) => Number.isInteger(port) && port > 0 && port < 65_536)
  return named.length > 0 ? [...new Set(named)] : usualPorts
}
