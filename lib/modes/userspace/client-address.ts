/** What a Service wants its endpoints to know about their clients. */
import { readAnnotation } from '../../state/annotations.js'
import {
  proxyProtocolAnnotation,
  sourceAddressAnnotation,
} from '../../state/connection-annotations.js'
import type { DesiredService, LocalTraffic } from '../../state/desired-state.js'
import type { ProxyHeader } from './datapath/proxy-header.js'
import type { SourceRule } from './datapath/source-rule.js'
import type { UserspaceSettings } from './settings.js'

export interface ClientFacts extends Pick<UserspaceSettings, 'sourceAddress' | 'masqueradesAll'> {
  readonly localTraffic: LocalTraffic
  /** There are no rules: listeners listen on the addresses of Services. */
  readonly isDirect: boolean
}

/** Undefined where endpoints see this node as their client. */
export function sourceRuleOf(
  service: DesiredService,
  list: 'cluster' | 'local',
  { isDirect, localTraffic, sourceAddress, masqueradesAll }: ClientFacts,
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
export function proxyHeaderOf(
  { clusterIp, port, options }: DesiredService,
  protocol: 'TCP' | 'UDP',
  isDirect: boolean,
): ProxyHeader | undefined {
  const word = readAnnotation(options, proxyProtocolAnnotation)
  // Version 1 of the format has no form for datagrams.
  if (word === undefined || (word === 'v1' && protocol === 'UDP')) return undefined
  return { version: word === 'v1' ? 1 : 2, asked: isDirect ? undefined : { ip: clusterIp, port } }
}
