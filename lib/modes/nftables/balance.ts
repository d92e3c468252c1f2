import type {
  Chain,
  DnatTarget,
  Draw,
  L4Protocol,
  NftSet,
  Rule,
  Statement,
} from '../../kernel/nftables/model.js'
import type { DesiredService, Endpoint } from '../../state/desired-state.js'
import { firstOf, inGroups, powerOfFour, weightedPlaces, maglevTable } from '../shares.js'
import { goTo, jumpTo, verdictRule } from './base-rules.js'
import {
  choiceChain,
  drawingChain,
  endpointBaseName,
  endpointMaps,
  groupBaseName,
  l4ProtocolOf,
  prefixed,
  serviceBaseName,
  sharingChain,
  sizeSet,
  smallestSize,
  type Choice,
} from './names.js'
import type { PlaceTable, RulesetPart, SharedChoice } from './part.js'

/**
 * Places the endpoints of a Service that is reached by its ClusterIP alone. They are elements of
 * one large map, found by the destination address of the packet. Shared chains, one for all
 * Services of about the same size, draw one of the elements. So another endpoint makes no rule, see
 * README. A Service with other addresses cannot be in the map, because its endpoints are placed by
 * ClusterIP.
 */
export function sharedChoice(service: DesiredService): SharedChoice | undefined {
  const { nodePort, externalIps, loadBalancerIps, affinitySeconds, internal } = service
  const isClusterIpOnly = nodePort === 0 && externalIps.length + loadBalancerIps.length === 0
  if (!isClusterIpOnly || affinitySeconds !== undefined) return undefined
  // The shared chains draw by chance.
  if (service.balance && service.balance.used !== 'random') return undefined
  if (internal !== 'cluster' && internal !== 'local') return undefined
  const endpoints = internal === 'cluster' ? service.clusterEndpoints : service.localEndpoints
  const places = powerOfFour(endpoints.length)
  const times = Math.floor(places / endpoints.length)
  return {
    choice: { protocol: l4ProtocolOf(service.protocol), places },
    placed: Array.from({ length: times }, () => endpoints).flat(),
  }
}

/**
 * Makes the chains and sets that {@link sharedChoice} needs, for all sizes that Services of a
 * protocol have. A Service that is in no set of a size has the smallest. So a lookup that misses an
 * element, because a transaction moves it to another set just then, still finds filled places.
 */
export function sharedPart(protocol: L4Protocol, sizes: Iterable<number>): RulesetPart {
  const choices = [...new Set([...sizes, smallestSize])]
    .sort((a, b) => b - a)
    .map((places): Choice => ({ protocol, places }))
  return {
    chains: [
      { name: sharingChain(protocol), rules: choices.map(toChoice) },
      ...choices.flatMap(choiceChains),
    ],
    sets: choices.map(sizeSet).filter((set) => set !== undefined),
    elements: [],
  }
}

function toChoice(choice: Choice): Rule {
  const set = sizeSet(choice)
  const isInSet: readonly Statement[] = set
    ? [{ kind: 'member', fields: ['daddr', 'dport'], set: set.name }]
    : []
  return verdictRule(...isInSet, { kind: 'verdict', verdict: goTo(choiceChain(choice)) })
}

/**
 * A packet that draws an empty place draws again. There are so many draws that all of them fail with
 * a chance of 1 in 2^32, and then the first place is taken, which is never empty.
 */
function choiceChains(choice: Choice): readonly Chain[] {
  const { protocol, places } = choice
  const dnatTo = (choices: number): Statement => ({
    kind: 'dnat-by-map',
    protocol,
    choices,
    map: endpointMaps[protocol].name,
  })
  const emptyAtMost = places / 2 - 1
  const draws = 32 / Math.log2(places / emptyAtMost)
  const side = Math.ceil(Math.sqrt(draws))
  const times = (rule: Rule) => Array.from({ length: side }, () => rule)
  return [
    {
      name: choiceChain(choice),
      rules: [
        ...times(verdictRule(jumpTo(drawingChain(choice)))),
        { statements: [dnatTo(1)], comment: `${side * side} times an empty place` },
      ],
    },
    { name: drawingChain(choice), rules: times(verdictRule(dnatTo(places))) },
  ]
}

/** The rules that choose an endpoint: NF14 without affinity, NF15 with it. */
export function balance(
  service: DesiredService,
  list: 'cluster' | 'local',
  namesOf: EndpointNames,
): Balanced {
  const endpoints = list === 'cluster' ? service.clusterEndpoints : service.localEndpoints
  const { drawn, by } = drawOf(service, endpoints)
  if (service.affinitySeconds === undefined) {
    // Only a Service without affinity gets a table. With affinity a client keeps its endpoint
    // anyway.
    return service.balance?.used === 'maglev'
      ? byTable(service, endpoints, list)
      : { rules: [dnatRule(service, drawn, by)] }
  }
  const toEndpoint = drawn.map((endpoint) => goTo(namesOf(endpoint).chain))
  const toRemembered = (endpoint: Endpoint): Rule => {
    const { set, chain } = namesOf(endpoint)
    return verdictRule(
      { kind: 'member', fields: ['saddr'], set },
      { kind: 'verdict', verdict: goTo(chain) },
    )
  }
  // For each of these rules the kernel looks through the sets of all endpoints to find one.
  const chains = Array.from(inGroups(endpoints), ([group, members]) => ({
    name: prefixed('clients', groupBaseName(service.name, list, group)),
    rules: members.map(toRemembered),
  }))
  const first =
    chains.length > 0
      ? chains.map(({ name }) => verdictRule(jumpTo(name)))
      : endpoints.map(toRemembered)
  return {
    rules: [...first, verdictRule({ kind: 'random-verdict', verdicts: toEndpoint, by })],
    chains,
  }
}

/** The rules of a chain, the further chains that they lead to, and the table that they read. */
interface Balanced {
  readonly rules: readonly Rule[]
  readonly chains?: readonly Chain[]
  readonly table?: PlaceTable
}

/** The endpoints from which one is drawn, and how. */
function drawOf(
  { balance: choice }: DesiredService,
  endpoints: readonly Endpoint[],
): { readonly drawn: readonly Endpoint[]; readonly by: Draw } {
  switch (choice?.used) {
    case 'weighted':
      return { drawn: weightedPlaces(endpoints), by: 'chance' }
    case 'first': {
      const first = firstOf(endpoints)
      return { drawn: first ? [first] : [], by: 'chance' }
    }
    case 'round-robin':
      return { drawn: endpoints, by: 'turn' }
    case 'source-hash':
    case 'maglev':
      return { drawn: endpoints, by: 'source' }
    case 'random':
    case 'least-connections':
    case undefined:
      return { drawn: endpoints, by: 'chance' }
  }
}

function byTable(
  { name, protocol: l4 }: DesiredService,
  endpoints: readonly Endpoint[],
  list: 'cluster' | 'local',
): Balanced {
  const protocol = l4ProtocolOf(l4)
  const map = prefixed(list === 'cluster' ? 'places' : 'local-places', serviceBaseName(name))
  const places = maglevTable(endpoints.map(({ key }) => key))
  const rule = verdictRule({ kind: 'dnat-by-source', protocol, places: places.length, map })
  const set: NftSet = { name: map, key: ['number'], holds: 'targets', protocol }
  return { rules: [rule], table: { set, endpoints, places } }
}

function dnatRule(service: DesiredService, targets: readonly DnatTarget[], by: Draw): Rule {
  return verdictRule(
    { kind: 'protocol', protocol: l4ProtocolOf(service.protocol) },
    { kind: 'dnat', targets, by },
  )
}

export function affinityOf(
  service: DesiredService,
  uses: { readonly usesCluster: boolean; readonly usesLocal: boolean },
  namesOf: EndpointNames,
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
      name: namesOf(endpoint).set,
      key: ['address'],
      holds: 'keys',
      timeoutSeconds,
    })),
    chains: endpoints.map((endpoint) => {
      const { chain, set } = namesOf(endpoint)
      return {
        name: chain,
        rules: [
          verdictRule({ kind: 'remember', set, field: 'saddr' }),
          dnatRule(service, [endpoint], 'chance'),
        ],
      }
    }),
  }
}

/** The chain of an endpoint, and the set of the clients that it remembers. */
type EndpointNames = (endpoint: Endpoint) => { readonly chain: string; readonly set: string }

/** Makes each name once, because a name contains a hash. */
export function endpointNames({ name }: DesiredService): EndpointNames {
  const made = new Map<string, ReturnType<EndpointNames>>()
  return ({ key, ip, port }) => {
    const known = made.get(key)
    if (known) return known
    const base = endpointBaseName(name, ip, port)
    const names = { chain: prefixed('endpoint', base), set: prefixed('affinity', base) }
    made.set(key, names)
    return names
  }
}
