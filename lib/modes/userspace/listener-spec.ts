import {
  firstByteAnnotation,
  keepAliveAnnotation,
  maxConnectionsAnnotation,
  removalAnnotation,
} from '../../state/connection-annotations.js'
import { proxyHeaderOf, sourceRuleOf, type ClientFacts } from './client-address.js'
import { readAnnotation } from '../../state/annotations.js'
import type { BalanceChoice } from '../../state/balance.js'
import type { DesiredService, Endpoint } from '../../state/desired-state.js'
import type { EndpointList } from './portals/portal-rules.js'
import type { ListenerSpec, Target } from './datapath/data-path.js'

export interface ListenerFacts extends ClientFacts {
  readonly udpIdleMs: number
}

/** The spec of the listener that a service port has for one of its endpoint lists. */
export function listenerSpec(
  service: DesiredService,
  protocol: 'TCP' | 'UDP',
  list: EndpointList,
  facts: ListenerFacts,
  place: Pick<ListenerSpec, 'key' | 'address' | 'port'>,
): ListenerSpec {
  const endpoints = list === 'cluster' ? service.clusterEndpoints : service.localEndpoints
  const { affinitySeconds } = service
  return {
    ...place,
    service: service.portName,
    protocol,
    endpoints: endpoints.map(targetOf),
    ...tcpLimits(service, protocol),
    affinityMs: affinitySeconds === undefined ? undefined : affinitySeconds * 1000,
    ...(service.balance ? { balance: balanceOf(service.balance, endpoints) } : {}),
    udpIdleMs: facts.udpIdleMs,
    proxyHeader: proxyHeaderOf(service, protocol, facts.isDirect),
    source: sourceRuleOf(service, list, facts),
  }
}

/**
 * The settings for TCP connections, and the serving endpoints. UDP always needs these; TCP needs
 * them only where connections to endpoints that left are reset.
 */
function tcpLimits(service: DesiredService, protocol: 'TCP' | 'UDP') {
  const serving = () => service.servingEndpoints.map(({ key }) => key)
  if (protocol === 'UDP') return { servingKeys: serving() }
  const { options } = service
  const resetAfterMs = readAnnotation(options, removalAnnotation)?.resetAfterMs
  return {
    servingKeys: resetAfterMs === undefined ? [] : serving(),
    resetAfterMs,
    maxConnections: readAnnotation(options, maxConnectionsAnnotation),
    keepAliveMs: readAnnotation(options, keepAliveAnnotation),
    firstByteMs: readAnnotation(options, firstByteAnnotation),
  }
}

function balanceOf(
  { used }: BalanceChoice,
  endpoints: readonly Endpoint[],
): NonNullable<ListenerSpec['balance']> {
  const usesWeights = used === 'weighted' || used === 'first'
  const weights = usesWeights ? endpoints.filter(({ weight }) => weight !== 1) : []
  return { word: used, weights: weights.map(({ key, weight }) => [key, weight]) }
}

function targetOf({ key, ip, port, isLocal }: Endpoint): Target {
  return { key, ip, port, isLocal }
}
