import type { DesiredService } from './desired-state.js'
import type { IpFamily } from './ip.js'

/** Service ports with a Local policy and no local endpoint. */
export interface PolicyCount {
  readonly policy: 'internal' | 'external'
  readonly family: IpFamily
  readonly count: number
}

/** Counts service ports with a Local policy and no local endpoint, as they come, change and go. */
export class PolicyCounts {
  readonly #counts = new Map<string, number>()

  /** `by` is 1 for a service port that comes, -1 for one that goes. */
  add(service: DesiredService | undefined, family: IpFamily, by: 1 | -1): void {
    if (service?.internalPolicyLocal && service.internal === 'drop') {
      this.#add(`${family}/internal`, by)
    }
    if (
      service?.externalPolicyLocal &&
      service.externallyAccessible &&
      service.external === 'drop'
    ) {
      this.#add(`${family}/external`, by)
    }
  }

  of(families: readonly IpFamily[]): readonly PolicyCount[] {
    return families.flatMap((family) =>
      (['internal', 'external'] as const).map((policy) => {
        const count = this.#counts.get(`${family}/${policy}`) ?? 0
        return { policy, family, count }
      }),
    )
  }

  #add(key: string, by: number): void {
    this.#counts.set(key, (this.#counts.get(key) ?? 0) + by)
  }
}
