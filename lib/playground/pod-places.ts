import { aborted } from '../aborted.js'
import type { PodLife, PodRuntime } from '../apiserver/controllers/pod-runtime.js'
import type { KubeObject } from '../apiserver/object.js'
import { addresses, podsOfNode, podsOfNode2, type Place } from '../world/topology.js'
import { backendPorts, type World } from '../world/world.js'

const placesOfNode: Readonly<Record<string, readonly Place[]>> = {
  'node-1': podsOfNode.filter((place) => place !== 'client-pod'),
  'node-2': podsOfNode2.filter((place) => place !== 'remote-pod'),
}

/** Runs the pods of the API server in the places of a world, as backends that tell their name. */
export class PodPlaces implements PodRuntime {
  readonly #world: World
  /** Who lives where. */
  readonly #tenants = new Map<Place, string>()
  #vacancy = new AbortController()

  constructor(world: World) {
    this.#world = world
  }

  /** Where a pod lives, by its name. */
  placeOf(pod: string): Place | undefined {
    return [...this.#tenants].find(([, tenant]) => tenant === pod)?.[0]
  }

  async run(pod: KubeObject, life: PodLife): Promise<void> {
    const { name } = pod.metadata
    const place = await this.#moveIn(name, life)
    if (place === undefined) return
    const agent = this.#world.agent(place)
    const [pair] = addresses[place]
    const ips = [pair.IPv4, pair.IPv6]
    try {
      life.report({ ips, ready: false })
      await agent.serve({
        name,
        addresses: ips,
        ports: backendPorts,
        protocols: this.#world.hasSctp ? ['TCP', 'UDP', 'SCTP'] : ['TCP', 'UDP'],
      })
      life.report({ ips, ready: true })
      await aborted(life.terminating)
      // Those who were sent here a moment ago still get their answer.
      await Promise.race([aborted(life.killed), lingering()])
      await agent.stopServing()
    } finally {
      this.#tenants.delete(place)
      this.#vacancy.abort()
      this.#vacancy = new AbortController()
    }
  }

  /** A free place on the pod's node; waits for one, as a pod that is pending does. */
  async #moveIn(name: string, life: PodLife): Promise<Place | undefined> {
    const candidates = placesOfNode[life.node?.metadata.name ?? ''] ?? []
    while (!life.terminating.aborted) {
      const free = candidates.find((place) => !this.#tenants.has(place))
      if (free !== undefined) {
        this.#tenants.set(free, name)
        return free
      }
      await aborted(AbortSignal.any([life.terminating, this.#vacancy.signal]))
    }
    return undefined
  }
}

const lingerMs = 1500

function lingering(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, lingerMs))
}
