import { setImmediate } from 'node:timers/promises'
import { SimulatedNetwork } from '../../lib/lab/simulation/network.js'
import { addresses, backendPorts, places } from '../../lib/lab/world/topology.js'
import { CaseObjects, caseConfig } from './case-states.js'
import { idOf, type Manifest } from './objects.js'
import { skips, type Skip } from './mode-profiles.js'
import type { Case, CaseSettings } from './case.js'
import type { CaseWorld } from './case-world.js'
import type { Changes, Subject } from './subject.js'
import type { ModeName } from '../../lib/config/config.js'

/** The places of the suite in the simulation of the playground. */
export class SimulatedWorld implements CaseWorld {
  readonly network = new SimulatedNetwork({
    now: () => performance.now() + this.#passed,
    random: Math.random,
  })
  #passed = 0

  constructor() {
    for (const place of places) {
      const all = addresses[place].flatMap(({ IPv4, IPv6 }) => [IPv4, IPv6])
      this.network.serve(all, { name: place, ports: backendPorts })
    }
  }

  agent: CaseWorld['agent'] = (place) => {
    // Other work goes on meanwhile, as during real connections.
    const later = async <T>(work: () => T) => {
      await setImmediate()
      return work()
    }
    const { network } = this
    return {
      flow: (request) => later(() => network.flow(place, request)),
      send: (id) => later(() => network.send(id)),
      forget: (id) => later(() => network.forget(id)),
      stray: () => later(() => undefined),
    }
  }

  pass(ms: number): void {
    this.#passed += ms
  }

  /** Deletes all rules, because only the commands of flush.ts come here. */
  exec(): Promise<void> {
    this.network.node.flush()
    return Promise.resolve()
  }
}

/** A planner of a mode, whose plans go into the simulation. */
export class SimulatedSubject implements Subject<SimulatedWorld> {
  readonly name: string
  readonly #mode: ModeName
  #world: SimulatedWorld | undefined
  #objects: CaseObjects | undefined
  #present = new Map<string, Manifest>()

  constructor(mode: ModeName) {
    this.name = `simulated ${mode}`
    this.#mode = mode
  }

  async start(
    world: SimulatedWorld,
    settings: CaseSettings,
    objects: readonly Manifest[],
  ): Promise<void> {
    this.#world = world
    this.#objects = new CaseObjects(settings, this.#mode)
    this.#present = new Map()
    world.network.node.start(this.#mode, caseConfig(settings, false))
    await this.apply({ upserts: objects, removals: [] })
  }

  apply({ upserts, removals }: Changes): Promise<void> {
    for (const manifest of removals) this.#present.delete(idOf(manifest))
    for (const manifest of upserts) this.#present.set(idOf(manifest), manifest)
    for (const state of this.#objects?.apply([...this.#present.values()]) ?? []) {
      this.#world?.network.node.write(state)
    }
    return Promise.resolve()
  }

  stop(): Promise<void> {
    return Promise.resolve()
  }
}

/** What the simulation leaves out, with the reason. */
export function simulationSkips(mode: ModeName): readonly Skip[] {
  const noPing: Skip = {
    reason: 'the simulation has no ICMP',
    flows: ({ protocol }) => protocol === 'ICMP',
  }
  const noHeader: Skip = {
    reason: 'the simulation writes no PROXY headers',
    flows: ({ source }) => source === 'announced',
  }
  const noWindow: Skip = {
    reason: 'the simulation has no TCP windows',
    flows: ({ flow }) => flow.stray,
  }
  return [...skips[mode], noPing, noHeader, noWindow]
}

/** Whether the simulation can run a case. Only a running proxy checks the health of endpoints. */
export function isSimulated({ topic }: Case): boolean {
  return topic !== 'health'
}
