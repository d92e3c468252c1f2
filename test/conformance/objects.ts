import type { IpFamily } from '../../lib/state/ip.js'
import type { Protocol } from '../../lib/state/names.js'
import { addressOf, addresses, places, podsOfNode } from '../../lib/lab/world/topology.js'
import type { Place } from '../../lib/lab/world/topology.js'
import type { ServiceShorthand } from './case.js'

/** A Kubernetes object as in a file or in the API. */
export type Manifest = Readonly<Record<string, unknown>>

/** `Kind/name`, unique among the objects of a case. */
export function idOf(manifest: Manifest): string {
  const { name } = manifest.metadata as { readonly name: string }
  return `${String(manifest.kind)}/${name}`
}

/** A port of a Service, as far as the shorthand says. */
export interface CasePort {
  readonly name: string
  readonly port: number
  readonly target: number
  readonly protocol: Protocol
  readonly nodePort: number
}

/** A Service of a case with the addresses it was given. */
export interface CaseService {
  readonly name: string
  readonly ports: readonly CasePort[]
  readonly families: readonly IpFamily[]
  readonly clusterIps: Readonly<Record<IpFamily, string>>
  /** An address of the same range that no Service has. */
  readonly unusedClusterIps: Readonly<Record<IpFamily, string>>
  readonly loadBalancerIps: Readonly<Record<IpFamily, string>>
  readonly externalIps: Readonly<Record<IpFamily, string>>
  readonly shorthand: ServiceShorthand
}

export const namespace = 'cases'

const bothFamilies: readonly IpFamily[] = ['IPv4', 'IPv6']

/**
 * Gives a Service its addresses. No two Services of a run share one, so that connections of an
 * earlier case in the kernel's table do not disturb a later case.
 */
export function buildCaseService(
  name: string,
  shorthand: ServiceShorthand,
  serial: number,
): CaseService {
  const hex = serial.toString(16)
  const visible = (serial % 250) + 1
  const families = shorthand.families ?? ['IPv4', 'IPv6']
  const hasNodePorts = shorthand.nodePort === true
  return {
    name,
    families,
    shorthand,
    ports: (shorthand.ports ?? ['80 -> 8080/TCP']).map((text, index) => {
      const port = parsePort(text)
      return { ...port, nodePort: hasNodePorts ? nodePortOf(serial, index, port, shorthand) : 0 }
    }),
    clusterIps: {
      IPv4: `10.${secondOf(shorthand)}.${1 + Math.floor(serial / 250)}.${visible}`,
      IPv6: `fd00:10:${secondOf(shorthand)}::${hex}`,
    },
    unusedClusterIps: {
      IPv4: `10.${secondOf(shorthand)}.255.254`,
      IPv6: `fd00:10:${secondOf(shorthand)}::fffe`,
    },
    loadBalancerIps: isOnLan(shorthand)
      ? { IPv4: `192.168.50.${200 + (serial % 50)}`, IPv6: `fd00:50::${hex}:1` }
      : { IPv4: `203.0.113.${visible}`, IPv6: `2001:db8:203::${hex}` },
    externalIps: { IPv4: `198.51.100.${visible}`, IPv6: `2001:db8:198::${hex}` },
  }
}

/** The second byte of ClusterIPs, which differs between the two ranges. */
function secondOf({ range }: ServiceShorthand): number {
  return range === 'second' ? 97 : 96
}

/** Whether the load balancer has an address of the nodes' network, as with layer 2 announcers. */
function isOnLan({ loadBalancer }: ServiceShorthand): boolean {
  return typeof loadBalancer === 'object' && loadBalancer.onLan === true
}

/** A port with the same number in the other protocol gets the same node port too (S25). */
function nodePortOf(
  serial: number,
  index: number,
  port: Omit<CasePort, 'nodePort'>,
  shorthand: ServiceShorthand,
): number {
  const first = (shorthand.ports ?? []).findIndex((text) => parsePort(text).port === port.port)
  return 30_000 + ((serial * 4) % 2700) + (first < 0 ? index : first)
}

function parsePort(text: string): Omit<CasePort, 'nodePort'> {
  const match = /^(?:([a-z0-9-]+): )?(\d+)(?: -> (\d+))?(?:\/(TCP|UDP|SCTP))?$/.exec(text)
  if (!match) throw new Error(`port ${text} is not of the form NAME: PORT -> TARGET/PROTOCOL`)
  const [, name = '', port, target, protocol = 'TCP'] = match
  return {
    name,
    port: Number(port),
    target: Number(target ?? 8080),
    protocol: protocol as Protocol,
  }
}

export function serviceManifest(service: CaseService): Manifest {
  const { shorthand, families } = service
  const type = shorthand.type ?? inferType(shorthand)
  const headless = type === 'Headless'
  const clusterIPs = headless ? ['None'] : families.map((family) => service.clusterIps[family])
  const affinity = shorthand.affinity ?? undefined
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: {
      name: service.name,
      namespace,
      labels: shorthand.labels ?? {},
      annotations: shorthand.annotations ?? {},
    },
    spec: {
      type: headless ? 'ClusterIP' : type,
      ...(type === 'ExternalName'
        ? { externalName: 'elsewhere.example' }
        : { clusterIP: clusterIPs[0], clusterIPs, ipFamilies: families }),
      ports: service.ports.map(({ name, port, target, protocol, nodePort }) => ({
        ...(name === '' ? {} : { name }),
        port,
        protocol,
        targetPort: target,
        ...(nodePort === 0 || type === 'ClusterIP' ? {} : { nodePort }),
      })),
      ...(shorthand.externalIPs === undefined || shorthand.externalIPs === false
        ? {}
        : {
            externalIPs: (shorthand.externalIPs === 'both' ? bothFamilies : families).map(
              (family) => service.externalIps[family],
            ),
          }),
      ...(affinity === undefined
        ? { sessionAffinity: 'None' }
        : {
            sessionAffinity: 'ClientIP',
            sessionAffinityConfig: { clientIP: { timeoutSeconds: affinity } },
          }),
      ...(shorthand.internalTrafficPolicy === undefined
        ? {}
        : { internalTrafficPolicy: shorthand.internalTrafficPolicy }),
      ...(shorthand.externalTrafficPolicy === undefined
        ? {}
        : { externalTrafficPolicy: shorthand.externalTrafficPolicy }),
      ...(shorthand.externalTrafficPolicy === 'Local' && type === 'LoadBalancer'
        ? { healthCheckNodePort: 32_760 }
        : {}),
      ...(shorthand.sourceRanges === undefined
        ? {}
        : { loadBalancerSourceRanges: shorthand.sourceRanges.flatMap(rangesOf) }),
      ...shorthand.spec,
    },
    status: { loadBalancer: { ingress: ingressOf(service) } },
  }
}

function inferType(shorthand: ServiceShorthand): string {
  if (shorthand.loadBalancer !== undefined && shorthand.loadBalancer !== false) {
    return 'LoadBalancer'
  }
  return shorthand.nodePort === true ? 'NodePort' : 'ClusterIP'
}

/** `outside` is the first address of that place, `outside#2` its second. */
function rangesOf(word: string): readonly string[] {
  const [name = '', number = '1'] = word.split('#')
  const place = places.find((candidate) => candidate === name)
  if (!place) return [word]
  const pair = addresses[place][Number(number) - 1]
  return pair ? [`${pair.IPv4}/32`, `${pair.IPv6}/128`] : []
}

function ingressOf({ shorthand, families, loadBalancerIps }: CaseService): readonly unknown[] {
  const wanted = shorthand.loadBalancer
  if (wanted === undefined || wanted === false) return []
  const options = wanted === true ? {} : wanted
  if (options.hostname !== undefined) return [{ hostname: options.hostname }]
  const { ipMode } = options
  return families.map((family) => ({
    ip: loadBalancerIps[family],
    ...(ipMode === undefined ? {} : { ipMode }),
  }))
}

/** The slices of a Service: one for each family and set of target ports, as the controller does. */
export function sliceManifests(service: CaseService): readonly Manifest[] {
  const { shorthand } = service
  return service.families.flatMap((family) => {
    const groups = new Map<string, string[]>()
    for (const text of shorthand.endpoints ?? []) {
      const override = /\bport=(\d+)/.exec(text)?.[1] ?? ''
      groups.set(override, [...(groups.get(override) ?? []), text])
    }
    const generated = [...groups].map(([override, texts]) =>
      sliceManifest(service, family, `${override}x`, {
        ports: portsOf(service, override),
        endpoints: texts.map((text) => endpointOf(text, family, service)),
      }),
    )
    const extra = (shorthand.slices ?? [])
      .filter((slice) => (slice.addressType ?? family) === family || slice.addressType === 'FQDN')
      .map((slice, index) => {
        const raw = Array.isArray(slice.endpoints) ? (slice.endpoints as Manifest[]) : []
        return sliceManifest(service, family, `extra${index}`, {
          ports: portsOf(service, ''),
          ...slice,
          endpoints: raw.map((endpoint) => withAddresses(endpoint, family)),
        })
      })
    return [...generated, ...extra]
  })
}

function sliceManifest(
  service: CaseService,
  family: IpFamily,
  suffix: string,
  body: Manifest,
): Manifest {
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      name: `${service.name}-${family.toLowerCase()}-${suffix}`,
      namespace,
      labels: { 'kubernetes.io/service-name': service.name, ...service.shorthand.sliceLabels },
    },
    addressType: family,
    ...body,
  }
}

function portsOf(service: CaseService, override: string): readonly unknown[] {
  return service.ports.map(({ name, target, protocol }) => ({
    name,
    port: override === '' ? target : Number(override),
    protocol,
  }))
}

const conditions: Readonly<Record<string, Manifest>> = {
  unready: { ready: false, serving: false, terminating: false },
  terminating: { ready: false, serving: true, terminating: true },
  stopped: { ready: false, serving: false, terminating: true },
}

function endpointOf(text: string, family: IpFamily, { clusterIps }: CaseService): Manifest {
  const [name, ...words] = text.split(' ')
  const place = places.find((candidate) => candidate === name)
  if (name === 'own-cluster-ip') return { addresses: [clusterIps[family]], conditions: {} }
  if (!place) throw new Error(`endpoint ${text}: nobody is called ${name}`)
  const condition = words.find((word) => word in conditions)
  const hints = words.flatMap((word) => {
    const [, kind, value] = /^for-(zone|node)=(.*)$/.exec(word) ?? []
    return kind === undefined ? [] : [{ kind, value }]
  })
  const unknown = words.find((word) => !(word in conditions) && !/^(for-\w+|port)=/.test(word))
  if (unknown !== undefined) throw new Error(`endpoint ${text}: the word ${unknown} is not known`)
  const ofKind = (kind: string) =>
    hints.filter((hint) => hint.kind === kind).map(({ value }) => ({ name: value }))
  return {
    addresses: [addressOf(place, family)],
    nodeName: nodeOf(place),
    targetRef: { kind: 'Pod', name: place },
    conditions: conditions[condition ?? ''] ?? { ready: true, serving: true, terminating: false },
    ...(hints.length > 0
      ? {
          hints: {
            ...(ofKind('zone').length > 0 ? { forZones: ofKind('zone') } : {}),
            ...(ofKind('node').length > 0 ? { forNodes: ofKind('node') } : {}),
          },
        }
      : {}),
  }
}

function withAddresses(endpoint: Manifest, family: IpFamily): Manifest {
  const named = Array.isArray(endpoint.addresses) ? endpoint.addresses.map(String) : []
  return {
    ...endpoint,
    addresses: named.map((name) => {
      const place = places.find((candidate) => candidate === name)
      return place ? addressOf(place, family) : name
    }),
  }
}

function nodeOf(place: Place): string {
  return place === 'node' || podsOfNode.some((pod) => pod === place) ? 'node' : 'node-2'
}
