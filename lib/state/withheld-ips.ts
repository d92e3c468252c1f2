import { isEqual } from './json.js'
import type { DesiredService } from './desired-state.js'
import type { Identity } from './objects.js'

/** Something about a Service that its owner should know. */
export interface ServiceWarning {
  readonly service: Identity
  readonly warning: string
}

/** What to tell about addresses that are withheld from a service port since its version before. */
export function newlyWithheld(
  before: DesiredService | undefined,
  { name: { namespace, name }, port, protocol, withheldIps }: DesiredService,
): readonly ServiceWarning[] {
  return withheldIps
    .filter((each) => !before?.withheldIps.some((known) => isEqual(known, each)))
    .map(({ ip, owner }) => ({
      service: { namespace, name },
      warning: `address ${ip} is not served at port ${port}/${protocol}: it is the ClusterIP of Service ${owner}; take it out of spec.externalIPs and status.loadBalancer`,
    }))
}
