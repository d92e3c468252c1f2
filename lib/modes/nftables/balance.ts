import type { Chain, NftSet, DnatTarget, Rule, Statement } from '../../kernel/nftables/model.js'
import type { DesiredService, Endpoint } from '../../state/desired-state.js'
import { goTo, verdictRule } from './base-rules.js'
import {
  choiceChain,
  endpointBaseName,
  endpointMaps,
  l4ProtocolOf,
  prefixed,
  type Choice,
} from './names.js'
import type { RulesetPart } from './part.js'

/**
 * The endpoints of a Service that is reached by its ClusterIP alone: they are elements of one
 * large map, found by the address the packet carries, and chosen in a chain shared by all
 * Services of as many endpoints. So replacing one makes no rule, see README. Packets that come by
 * another address of the Service would not be found there.
 */
export function sharedChoice(service: DesiredService): readonly Endpoint[] | undefined {
  const { nodePort, externalIps, loadBalancerIps, affinitySeconds, internal } = service
  const isClusterIpOnly = nodePort === 0 && externalIps.length + loadBalancerIps.length === 0
  if (!isClusterIpOnly || affinitySeconds !== undefined) return undefined
  if (internal === 'cluster') return service.clusterEndpoints
  return internal === 'local' ? service.localEndpoints : undefined
}

export const choiceOf = (
  { protocol }: DesiredService,
  { length }: readonly Endpoint[],
): Choice => ({
  protocol: l4ProtocolOf(protocol),
  endpoints: length,
})

/** What {@link sharedChoice} needs besides: one chain per number of endpoints. */
export function choicePart(choice: Choice): RulesetPart {
  const { protocol, endpoints } = choice
  const choose: Statement = {
    kind: 'dnat-by-map',
    protocol,
    choices: endpoints,
    map: endpointMaps[protocol].name,
  }
  // Looking up and committing do not wait for each other, so a packet might find neither of two
  // elements while one replaces the other. A precaution: who found nothing draws again.
  const rules = [verdictRule(choose), { statements: [choose], comment: 'once more' }]
  return { chains: [{ name: choiceChain(choice), rules }], sets: [], elements: [] }
}

/** NF14 without affinity, NF15 with it. */
export function balance(
  service: DesiredService,
  endpoints: readonly Endpoint[],
  shared: readonly Endpoint[] | undefined,
): readonly Rule[] {
  if (shared) {
    return [verdictRule({ kind: 'verdict', verdict: goTo(choiceChain(choiceOf(service, shared))) })]
  }
  if (service.affinitySeconds === undefined) return [dnatRule(service, endpoints)]
  const toEndpoint = endpoints.map((endpoint) => goTo(endpointChain(service, endpoint)))
  return [
    ...endpoints.map((endpoint) =>
      verdictRule(
        { kind: 'member', fields: ['saddr'], set: affinitySet(service, endpoint) },
        { kind: 'verdict', verdict: goTo(endpointChain(service, endpoint)) },
      ),
    ),
    verdictRule({ kind: 'random-verdict', verdicts: toEndpoint }),
  ]
}

function dnatRule(service: DesiredService, targets: readonly DnatTarget[]): Rule {
  return verdictRule(
    { kind: 'protocol', protocol: l4ProtocolOf(service.protocol) },
    { kind: 'dnat', targets },
  )
}

export function affinityOf(
  service: DesiredService,
  uses: { readonly usesCluster: boolean; readonly usesLocal: boolean },
): { readonly chains: readonly Chain[]; readonly sets: readonly NftSet[] } {
  const timeoutSeconds = service.affinitySeconds
  if (timeoutSeconds === undefined) return { chains: [], sets: [] }
  const used = [
    ...(uses.usesCluster ? service.clusterEndpoints : []),
    ...(uses.usesLocal ? service.localEndpoints : []),
  ]
  const endpoints = [...new Map(used.map((endpoint) => [endpoint.key, endpoint])).values()]
  return {
    sets: endpoints.map((endpoint) => ({
      name: affinitySet(service, endpoint),
      key: ['address'],
      holds: 'keys',
      timeoutSeconds,
    })),
    chains: endpoints.map((endpoint) => ({
      name: endpointChain(service, endpoint),
      rules: [
        verdictRule({
          kind: 'remember',
          set: affinitySet(service, endpoint),
          field: 'saddr',
        }),
        dnatRule(service, [endpoint]),
      ],
    })),
  }
}

const endpointChain = (service: DesiredService, { ip, port }: Endpoint) =>
  prefixed('endpoint', endpointBaseName(service.name, ip, port))

const affinitySet = (service: DesiredService, { ip, port }: Endpoint) =>
  prefixed('affinity', endpointBaseName(service.name, ip, port))
