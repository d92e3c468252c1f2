import { aborted } from '../../async.js'
import { podsOfNode, podsOfNode2, type Place } from '../world/topology.js'
import { podWishOf } from './pod-state.js'
import type { TestBed } from './test-bed.js'
import type { KubeObject } from '../apiserver/object.js'
import type { PodLife, PodRuntime } from '../apiserver/controllers/pod-runtime.js'
import type { VersionedStore } from '../apiserver/store.js'

const placesOfNode: Readonly<Record<string, readonly Place[]>> = {
  'node-1': podsOfNode.filter((place) => place !== 'client-pod'),
  'node-2': podsOfNode2.filter((place) => place !== 'remote-pod'),
}

/** What pods need of a test bed. */
type PodPlaces = Pick<TestBed, 'layout' | 'serve' | 'stopServing' | 'goDark'>

/** Runs the pods of the API server in the places of a cluster, as backends that tell their name. */
export class PlaygroundPods implements PodRuntime {
  readonly #testBed: PodPlaces
  /** The name of the pod in each place. */
  readonly #podIn = new Map<Place, string>()
  #placeFreed = new AbortController()
  #store: VersionedStore | undefined

  constructor(testBed: PodPlaces) {
    this.#testBed = testBed
  }

  /** Reads what learners ask for: annotations of the pods. */
  follow(store: VersionedStore): void {
    this.#store = store
  }

  /** The place of a pod, by its name. */
  placeOf(pod: string): Place | undefined {
    return [...this.#podIn].find(([, name]) => name === pod)?.[0]
  }

  async run(pod: KubeObject, life: PodLife): Promise<void> {
    const { name } = pod.metadata
    const place = await this.#moveIn(name, life)
    if (place === undefined) return
    const ips = this.#testBed.layout.addresses[place]
    try {
      life.report({ ips, ready: false })
      await this.#live(pod, place, life)
      // Connections that were sent here a moment ago still get their answer.
      await Promise.race([aborted(life.killed), pause(lingerMs)])
      await this.#testBed.stopServing(place)
    } finally {
      this.#podIn.delete(place)
      this.#placeFreed.abort()
      this.#placeFreed = new AbortController()
    }
  }

  /** Follows the annotations of the pod until it is terminated. */
  async #live(pod: KubeObject, place: Place, life: PodLife): Promise<void> {
    const testBed = this.#testBed
    const ips = testBed.layout.addresses[place]
    const { name, uid } = pod.metadata
    let wish = podWishOf(pod)
    let changed = new AbortController()
    const unsubscribe = this.#store?.subscribe('pods', ({ object }) => {
      if (object.metadata.uid !== uid) return
      wish = podWishOf(object)
      changed.abort()
    })
    let runs = false
    let isDark = false
    const goDark = async (shall: boolean) => {
      if (shall !== isDark) await testBed.goDark?.(place, shall)
      isDark = shall
    }
    try {
      while (!life.terminating.aborted) {
        changed = new AbortController()
        const { runs: shallRun, isReady } = wish
        if (shallRun !== runs) {
          if (shallRun) await testBed.serve(place, name)
          else {
            await testBed.stopServing(place)
            // A kubelet takes this long to notice that its probe gets no answer.
            await Promise.race([aborted(life.terminating), pause(probeMs)])
          }
          runs = shallRun
        }
        await goDark(wish.isDark)
        life.report({ ips, ready: isReady })
        await aborted(AbortSignal.any([life.terminating, changed.signal]))
      }
    } finally {
      unsubscribe?.()
      // The next pod in this place is another one.
      await goDark(false)
    }
  }

  /** A free place on the pod's node; waits for one, as a pod that is pending does. */
  async #moveIn(name: string, life: PodLife): Promise<Place | undefined> {
    const candidates = placesOfNode[life.node?.metadata.name ?? ''] ?? []
    while (!life.terminating.aborted) {
      const free = candidates.find((place) => !this.#podIn.has(place))
      if (free !== undefined) {
        this.#podIn.set(free, name)
        return free
      }
      await aborted(AbortSignal.any([life.terminating, this.#placeFreed.signal]))
    }
    return undefined
  }
}

const lingerMs = 1500
const probeMs = 1500

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}
