import {
  firstByteAnnotation,
  keepAliveAnnotation,
  maxConnectionsAnnotation,
  proxyProtocolAnnotation,
  removalAnnotation,
  sourceAddressAnnotation,
} from '../../state/connection-annotations.js'
import { readAnnotation } from '../../state/annotations.js'
import type { BalanceChoice } from '../../state/balance.js'
import type { DesiredService, Endpoint, LocalTraffic } from '../../state/desired-state.js'
import type { EndpointList } from './portals/portal-rules.js'
import type { ListenerSpec } from './datapath/data-path.js'
import type { ProxyHeader } from './datapath/proxy-header.js'
import type { SourceRule } from './datapath/source-rule.js'
import type { UserspaceSettings } from './settings.js'

export interface ListenerFacts extends Pick<UserspaceSettings, 'sourceAddress' | 'masqueradesAll'> {
  readonly udpIdleMs: number
  readonly localTraffic: LocalTraffic
  /** There are no rules: listeners listen on the addresses of Services. */
  readonly isDirect: boolean
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
    endpoints: endpoints.map(({ key, ip, port, isLocal }) => ({ key, ip, port, isLocal })),
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

/** Undefined where endpoints see this node as their client. */
function sourceRuleOf(
  service: DesiredService,
  list: 'cluster' | 'local',
  { isDirect, localTraffic, sourceAddress, masqueradesAll }: ListenerFacts,
): SourceRule | undefined {
  const { clusterIp, port, options, externalPolicyLocal, externallyAccessible } = service
  const wanted = readAnnotation(options, sourceAddressAnnotation) ?? sourceAddress
  if (wanted === 'hide' || isDirect) return undefined
  const outside = externalPolicyLocal ? 'kept' : 'hidden'
  return {
    clusterIp: { ip: clusterIp, port },
    pods: localTraffic,
    masqueradesAll,
    external: externallyAccessible ? outside : 'none',
    isLocalList: list === 'local',
    avoidsBridges: wanted === 'auto',
  }
}

/**
 * Undefined where the Service wants no PROXY header. A socket behind rules does not always know the
 * address that its client asked, so the ClusterIP stands for it.
 */
function proxyHeaderOf(
  { clusterIp, port, options }: DesiredService,
  protocol: 'TCP' | 'UDP',
  isDirect: boolean,
): ProxyHeader | undefined {
  const word = readAnnotation(options, proxyProtocolAnnotation)
  // Version 1 of the format has no form for datagrams.
  if (word === undefined || (word === 'v1' && protocol === 'UDP')) return undefined
  return { version: word === 'v1' ? 1 : 2, asked: isDirect ? undefined : { ip: clusterIp, port } }
}
