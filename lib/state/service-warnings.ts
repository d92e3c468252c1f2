import { balanceText } from './balance.js'
import { isEqual } from './json.js'
import type { DesiredService } from './desired-state.js'
import type { Identity } from './objects.js'

/** Something about a Service that its owner should know. */
export interface ServiceWarning {
  readonly service: Identity
  /** The reason of the Event. */
  readonly event: 'AddressInUse' | 'EndpointLeadsBack' | 'BalancedOtherwise' | 'NotInThisMode'
  readonly warning: string
}

/** The warnings about a service port that its version before did not have. */
export function newWarnings(
  before: DesiredService | undefined,
  next: DesiredService,
): readonly ServiceWarning[] {
  const { name, port, protocol, withheldIps, unusableEndpoints } = next
  const service = { namespace: name.namespace, name: name.name }
  return [
    ...fresh(withheldIps, before?.withheldIps).map(({ ip, owner }) => ({
      ...{ service, event: 'AddressInUse' as const },
      warning: `address ${ip} is not served at port ${port}/${protocol}: it is the ClusterIP of Service ${owner}; take it out of spec.externalIPs and status.loadBalancer`,
    })),
    ...fresh(unusableEndpoints, before?.unusableEndpoints).map(({ key, owner }) => ({
      ...{ service, event: 'EndpointLeadsBack' as const },
      warning: `endpoint ${key} of port ${port}/${protocol} is not used: it is the ClusterIP of Service ${owner}, and the kernel translates a connection only once; use the endpoints of that Service instead`,
    })),
    // All ports and families of a Service give the same texts, so that each is said once.
    ...fresh(balanceTexts(next), before && balanceTexts(before)).map((warning) => ({
      ...{ service, event: 'BalancedOtherwise' as const },
      warning,
    })),
    ...fresh(next.unsupported ?? [], before?.unsupported).map((warning) => ({
      ...{ service, event: 'NotInThisMode' as const },
      warning,
    })),
  ]
}

const balanceTexts = ({ balance }: DesiredService) =>
  balance?.why === undefined ? [] : [`${balanceText(balance)} (docs/balancing.md)`]

function fresh<T>(all: readonly T[], known: readonly T[] | undefined): readonly T[] {
  return all.filter((each) => !known?.some((other) => isEqual(other, each)))
}
