import { checkedEndpoints } from './service-health.js'
import { collectCandidates, type Candidate, type Categorized } from './endpoints.js'
import { cidrsOf, familyOf, type Cidr, type IpFamily } from './ip.js'
import { readAnnotation } from './annotations.js'
import {
  balanceAnnotation,
  choiceOf,
  weightAnnotation,
  type Substitutes,
  type Weights,
} from './balance.js'
import { keyOf, portNameOf, type ServicePortName } from './names.js'
import { unsupportedTexts, type Unsupported } from './unsupported.js'
import { endpointCheckOf } from './endpoint-check.js'
import type { DesiredService, UnusableEndpoint, Verdict, WithheldIp } from './desired-state.js'
import type { EndpointSliceObject, ServiceObject, ServicePortObject } from './objects.js'

export type PortNumber = Pick<ServicePortObject, 'port' | 'protocol'>

interface ServicePortContext {
  readonly family: IpFamily
  readonly nodeName: string
  readonly zone: string | undefined
  /** Feature gate AllowServiceExternalIPs (S09). */
  readonly allowsExternalIps: boolean
  /** What the mode does instead of a balance that it cannot do. */
  readonly substitutes: Substitutes
  /** The annotations that the mode cannot do. */
  readonly unsupported: readonly Unsupported[]
  /** The id of another Service that has this address and port as its own. */
  readonly ownerOf: (ip: string, port: ServicePortObject) => string | undefined
  /** The id of a Service whose ClusterIP and port are an endpoint's, if the mode cannot use it. */
  readonly leadsTo: (ip: string, port: PortNumber) => string | undefined
  /** Why endpoints of a service port fail, by `Endpoint.key`. */
  readonly failing: (port: ServicePortName) => ReadonlyMap<string, string>
}

/** The service ports of one Service in one family, with endpoints and verdicts. */
export function buildServicePorts(
  service: ServiceObject,
  slices: readonly EndpointSliceObject[],
  context: ServicePortContext,
): readonly DesiredService[] {
  const clusterIp = service.clusterIps[context.family]
  if (clusterIp === undefined) return []
  const ofFamily = (ip: string) => familyOf(ip) === context.family
  const asked = readAnnotation(service.options, balanceAnnotation)
  const weights = readAnnotation(service.options, weightAnnotation)
  const unsupported = unsupportedTexts(service.options, context.unsupported)
  const common = {
    clusterIp,
    externalIps: context.allowsExternalIps ? service.externalIps.filter(ofFamily) : [],
    loadBalancerIps: service.loadBalancerIps.filter(ofFamily),
    sourceRanges: sourceRangesOf(service, context.family),
    balance: asked && choiceOf(asked, context.substitutes),
    ...(unsupported.length > 0 ? { unsupported } : {}),
  }
  const ownSlices = slices.filter(({ family }) => family === context.family)
  return service.ports.map((port) =>
    buildPort(service, port, ownSlices, { ...context, weights }, common),
  )
}

type External = Pick<DesiredService, 'externalIps' | 'loadBalancerIps'>
type Common = External &
  Pick<DesiredService, 'clusterIp' | 'sourceRanges' | 'balance' | 'unsupported'>
type PortContext = ServicePortContext & { readonly weights: Weights | undefined }

function buildPort(
  service: ServiceObject,
  port: ServicePortObject,
  slices: readonly EndpointSliceObject[],
  context: PortContext,
  common: Common,
): DesiredService {
  const { internalPolicyLocal, externalPolicyLocal, namespace } = service
  const { protocol } = port
  const name: ServicePortName = { namespace, name: service.name, port: port.name, protocol }
  const addresses = externalOf(common, port, context)
  const { loadBalancerIps, externalIps } = addresses
  const externallyAccessible =
    port.nodePort !== 0 || loadBalancerIps.length > 0 || externalIps.length > 0
  const { candidates, unusableEndpoints } = candidatesOf(slices, port, context)
  const { serving, ready, health, ...endpoints } = checkedEndpoints(
    {
      candidates,
      usesClusterEndpoints: !internalPolicyLocal || externallyAccessible,
      usesLocalEndpoints: internalPolicyLocal || (externalPolicyLocal && externallyAccessible),
      nodeName: context.nodeName,
      zone: context.zone,
    },
    endpointCheckOf(service.options, protocol),
    context.failing(name),
  )
  return Object.freeze({
    key: keyOf(name),
    name,
    portName: portNameOf(name),
    protocol,
    port: port.port,
    nodePort: port.nodePort,
    ...common,
    ...addresses,
    unusableEndpoints,
    affinitySeconds: service.affinitySeconds,
    internalPolicyLocal,
    externalPolicyLocal,
    externallyAccessible,
    healthCheckNodePort: service.healthCheckNodePort,
    options: service.options,
    ...endpoints,
    servingEndpoints: sameOrFiltered(endpoints.reachableEndpoints, serving),
    ...health,
    readyLocalAddresses: localAddresses(ready),
    internal: verdictOf(internalPolicyLocal, endpoints),
    external: verdictOf(externalPolicyLocal, endpoints),
  })
}

const noUnusable: readonly UnusableEndpoint[] = []

function candidatesOf(
  slices: readonly EndpointSliceObject[],
  port: ServicePortObject,
  { nodeName, weights, leadsTo }: PortContext,
): { readonly candidates: readonly Candidate[] } & Pick<DesiredService, 'unusableEndpoints'> {
  const { protocol } = port
  const all = collectCandidates(slices, port, { nodeName, weights })
  const unusable = new Map<string, UnusableEndpoint>()
  for (const { endpoint } of all) {
    const { key, ip, port } = endpoint
    const owner = leadsTo(ip, { port, protocol })
    if (owner !== undefined) unusable.set(key, { key, owner })
  }
  if (unusable.size === 0) return { candidates: all, unusableEndpoints: noUnusable }
  return {
    candidates: all.filter(({ endpoint }) => !unusable.has(endpoint.key)),
    unusableEndpoints: [...unusable.values()],
  }
}

const noIps: readonly WithheldIp[] = []

/**
 * Leaves out ClusterIPs of other Services. Otherwise a user who may write `externalIPs` or a
 * load-balancer status could take the traffic of others (CVE-2020-8554).
 */
function externalOf(
  { externalIps, loadBalancerIps }: Common,
  port: ServicePortObject,
  { ownerOf }: ServicePortContext,
): External & Pick<DesiredService, 'withheldIps'> {
  const withheld = new Map<string, WithheldIp>()
  for (const ip of [...externalIps, ...loadBalancerIps]) {
    const owner = ownerOf(ip, port)
    if (owner !== undefined) withheld.set(ip, { ip, owner })
  }
  if (withheld.size === 0) return { externalIps, loadBalancerIps, withheldIps: noIps }
  const isFree = (ip: string) => !withheld.has(ip)
  return {
    externalIps: externalIps.filter(isFree),
    loadBalancerIps: loadBalancerIps.filter(isFree),
    withheldIps: [...withheld.values()],
  }
}

function verdictOf(isLocal: boolean, endpoints: Categorized): Verdict {
  const { clusterEndpoints, localEndpoints, hasAnyEndpoints } = endpoints
  if ((isLocal ? localEndpoints : clusterEndpoints).length > 0) return isLocal ? 'local' : 'cluster'
  return hasAnyEndpoints ? 'drop' : 'reject'
}

/** Most lists of serving endpoints equal the reachable ones. A shared array halves the memory. */
function sameOrFiltered<T>(shared: readonly T[], own: readonly T[]): readonly T[] {
  return shared.length === own.length && own.every((item, index) => item === shared[index])
    ? shared
    : own
}

function localAddresses(ready: readonly { ip: string; isLocal: boolean }[]) {
  const local = ready.filter(({ isLocal }) => isLocal)
  return [...new Set(local.map(({ ip }) => ip))].sort()
}

/**
 * S12: only the ranges of this family. A range `/0` allows every client of its family, so with one
 * the list filters nothing there.
 */
function sourceRangesOf(service: ServiceObject, family: IpFamily): readonly Cidr[] {
  const own = cidrsOf(family, service.sourceRanges)
  return own.some(({ prefix }) => prefix === 0) ? [] : own
}
