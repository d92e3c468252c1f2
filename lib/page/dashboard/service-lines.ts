import { PersistentMap } from '../../state/persistent-map.js'
import type { DesiredService } from '../../state/desired-state.js'
import type { FamilyProgress } from './progress.js'
import type { IpFamily } from '../../state/ip.js'
import type { ServiceLine } from '../view.js'

/** A line for each service port, with its addresses of all families. Unchanged lines are kept. */
export class ServiceLines {
  readonly #seen = new Map<IpFamily, FamilyProgress>()
  /** `DesiredService.key` by port name. */
  readonly #keys = new Map<string, string>()
  /** Port names of which the kernel lacks something. */
  readonly #pending = new Set<string>()
  #lines = PersistentMap.empty<ServiceLine>()

  /** How many service ports differ from what the kernel has. */
  get pending(): number {
    return this.#pending.size
  }

  /** By port name. */
  get lines(): PersistentMap<ServiceLine> {
    return this.#lines
  }

  keyOf(portName: string): string | undefined {
    return this.#keys.get(portName)
  }

  update(families: readonly FamilyProgress[]): void {
    const touched = new Map<string, string>()
    const isWanted = (key: string) => families.some(({ wanted }) => wanted.services.has(key))
    // A port whose protocol changes has a new key. The old one must not take its line away.
    const touch = ({ portName, key }: DesiredService) => {
      const known = touched.get(portName) ?? this.#keys.get(portName)
      const isOld = known !== undefined && isWanted(known) && !isWanted(key)
      touched.set(portName, isOld ? known : key)
    }
    for (const now of families) {
      const before = this.#seen.get(now.family)
      this.#seen.set(now.family, now)
      const [applied, last] = [now.applied, before?.applied]
      for (const service of differing(now.wanted.services, before?.wanted.services)) touch(service)
      if (!applied) continue
      for (const service of differing(applied.state.services, last?.state.services)) touch(service)
      for (const key of [...applied.failed.keys(), ...(last?.failed.keys() ?? [])]) {
        const service = applied.state.services.get(key)
        if (service) touch(service)
      }
    }
    this.#lines = this.#lines.update(
      Array.from(touched, ([name, key]) => [name, this.#line(name, key, families)]),
    )
  }

  #line(name: string, key: string, families: readonly FamilyProgress[]): ServiceLine | undefined {
    const services = families.flatMap(({ wanted, applied }) => {
      const service = applied?.state.services.get(key) ?? wanted.services.get(key)
      return service ? [service] : []
    })
    const [first] = services
    const note = families.map((family) => noteOf(key, family)).find((each) => each !== '')
    if (note === undefined) this.#pending.delete(name)
    else this.#pending.add(name)
    if (!first) {
      this.#keys.delete(name)
      return undefined
    }
    this.#keys.set(name, key)
    return {
      key: name,
      type: typeOf(first),
      clusterIp: services.map(({ clusterIp }) => clusterIp).join(', '),
      ports: `${first.port}/${first.protocol}`,
      ...(note === undefined ? {} : { note }),
    }
  }
}

/** Services that differ between the two maps. */
function differing(
  now: PersistentMap<DesiredService>,
  before: PersistentMap<DesiredService> | undefined,
): readonly DesiredService[] {
  const { added, changed, removed } = now.since(before)
  return [...added, ...changed, ...removed].map(([, service]) => service)
}

function noteOf(key: string, { wanted, applied }: FamilyProgress): string {
  const failure = applied?.failed.get(key)
  if (failure !== undefined) return `not in the kernel: ${failure}`
  const service = wanted.services.get(key)
  if (applied?.state.services.get(key) === service) return ''
  return service ? 'on its way to the kernel' : 'leaving the kernel'
}

export function typeOf({ loadBalancerIps, nodePort }: DesiredService): string {
  if (loadBalancerIps.length > 0) return 'LoadBalancer'
  return nodePort > 0 ? 'NodePort' : 'ClusterIP'
}
