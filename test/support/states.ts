/**
 * States for tests, short to write: `states().put(service({ nodePort: 30080, endpoints: 2
 * })).take()`. They go through the real Tracker, so that the product decides on endpoints and
 * verdicts.
 */
import { Tracker, type TrackerSettings } from '../../lib/state/tracker.js'
import { parseCidr, type IpFamily } from '../../lib/state/ip.js'
import type { DesiredState } from '../../lib/state/desired-state.js'
import type { EndpointSliceObject, ServiceObject } from '../../lib/state/objects.js'
import { configWith } from '../../lib/config/load.js'
import { iptablesSettings } from '../../lib/modes/iptables/settings.js'
import { ipvsSettings } from '../../lib/modes/ipvs/settings.js'
import { nftablesSettings } from '../../lib/modes/nftables/settings.js'
import { userspaceSettings } from '../../lib/modes/userspace/settings.js'
import type { Protocol } from '../../lib/state/names.js'

export const testNode = 'node-1'

export interface EndpointSpec {
  readonly ip: string
  readonly port?: number
  /** Whether it is on the node of the test; the default is true. */
  readonly local?: boolean
  readonly ready?: boolean
  readonly serving?: boolean
  readonly terminating?: boolean
  readonly weight?: number
  readonly nodeHints?: readonly string[]
  readonly zoneHints?: readonly string[]
}

/** One Service with one port. Every field has a default. */
export interface ServiceSpec {
  readonly namespace: string
  readonly name: string
  readonly portName: string
  readonly protocol: Protocol
  readonly clusterIp: string
  readonly port: number
  readonly nodePort: number
  readonly externalIps: readonly string[]
  readonly loadBalancerIps: readonly string[]
  readonly sourceRanges: readonly string[]
  readonly affinitySeconds: number | undefined
  readonly internalPolicyLocal: boolean
  readonly externalPolicyLocal: boolean
  readonly healthCheckNodePort: number
  readonly options: Readonly<Record<string, string>>
  readonly endpoints: readonly EndpointSpec[]
}

/** `endpoints` may be a number: then there are so many local ones, from 10.180.0.1:8080 on. */
export function service(
  spec: Partial<Omit<ServiceSpec, 'endpoints'>> & {
    readonly endpoints?: number | readonly (string | EndpointSpec)[]
  } = {},
): ServiceSpec {
  const { endpoints = 2, ...rest } = spec
  const ipv6 = rest.clusterIp?.includes(':') ?? false
  const listed =
    typeof endpoints === 'number'
      ? Array.from({ length: endpoints }, (_, index) =>
          ipv6
            ? `fd00:180::${(index + 1).toString(16)}`
            : `10.180.${index >> 8}.${(index & 255) + 1}`,
        )
      : endpoints
  return {
    namespace: 'default',
    name: 'web',
    portName: 'http',
    protocol: 'TCP',
    clusterIp: '10.96.0.10',
    port: 80,
    nodePort: 0,
    externalIps: [],
    loadBalancerIps: [],
    sourceRanges: [],
    affinitySeconds: undefined,
    internalPolicyLocal: false,
    externalPolicyLocal: false,
    healthCheckNodePort: 0,
    options: {},
    ...rest,
    endpoints: listed.map((one) => (typeof one === 'string' ? { ip: one } : one)),
  }
}

/** A cluster that changes. `take` returns its present state in one family. */
export class States {
  readonly #tracker: Tracker
  readonly #family: IpFamily

  constructor(family: IpFamily, settings: Partial<TrackerSettings>, addresses: readonly string[]) {
    this.#family = family
    this.#tracker = new Tracker({
      families: [family],
      nodeName: testNode,
      bindAddress: '0.0.0.0',
      nodePortAddresses: [],
      detectLocal: {
        mode: 'ClusterCIDR',
        cidrs: [family === 'IPv4' ? '10.180.0.0/16' : 'fd00:180::/64'],
      },
      allowsExternalIps: true,
      ...settings,
    })
    this.#tracker.setLocalAddresses(addresses)
  }

  put(...specs: readonly ServiceSpec[]): this {
    for (const spec of specs) {
      this.#tracker.upsertService(serviceObject(spec, this.#family))
      this.#tracker.upsertEndpointSlice(sliceObject(spec, this.#family))
    }
    return this
  }

  remove(...specs: readonly Pick<ServiceSpec, 'namespace' | 'name'>[]): this {
    for (const { namespace, name } of specs) {
      this.#tracker.removeService(namespace, name)
      this.#tracker.removeEndpointSlice(namespace, name)
    }
    return this
  }

  setLocalAddresses(addresses: readonly string[]): this {
    this.#tracker.setLocalAddresses(addresses)
    return this
  }

  take(): DesiredState {
    const [state] = this.#tracker.take().states
    if (!state) throw new Error('no state')
    return state
  }
}

export function states(
  family: IpFamily = 'IPv4',
  settings: Partial<TrackerSettings> = {},
  addresses: readonly string[] = family === 'IPv4'
    ? ['127.0.0.1', '192.0.2.1']
    : ['::1', '2001:db8::1'],
): States {
  return new States(family, settings, addresses)
}

/** The state of a cluster with only these Services. */
export function state(specs: readonly ServiceSpec[], family: IpFamily = 'IPv4'): DesiredState {
  return states(family)
    .put(...specs)
    .take()
}

export const testConfig = configWith({
  bindAddress: '0.0.0.0',
  takeover: false,
  udpIdleTimeout: 250,
  'userspace.datapath': 'net',
  'userspace.workers': 1,
  'userspace.portals': 'iptables',
  'userspace.drainTimeout': 0,
  'userspace.passiveHealth': false,
  'userspace.accessLog': false,
  'userspace.takeoverFolder': '',
})

/** The settings of the modes that share these states. */
export const testSettings = {
  ...userspaceSettings(testConfig),
  ...ipvsSettings(testConfig),
  ...iptablesSettings(testConfig),
  ...nftablesSettings(testConfig),
}

function serviceObject(spec: ServiceSpec, family: IpFamily): ServiceObject {
  const { portName, protocol, port, nodePort, clusterIp } = spec
  return Object.freeze({
    namespace: spec.namespace,
    name: spec.name,
    externalIps: spec.externalIps,
    loadBalancerIps: spec.loadBalancerIps,
    affinitySeconds: spec.affinitySeconds,
    internalPolicyLocal: spec.internalPolicyLocal,
    externalPolicyLocal: spec.externalPolicyLocal,
    healthCheckNodePort: spec.healthCheckNodePort,
    options: spec.options,
    sourceRanges: spec.sourceRanges.map((text) => parseCidr(text)?.text ?? text),
    clusterIps: { [family]: clusterIp },
    ports: [{ name: portName, protocol, port, nodePort }],
  })
}

function sliceObject(spec: ServiceSpec, family: IpFamily): EndpointSliceObject {
  return Object.freeze({
    namespace: spec.namespace,
    name: spec.name,
    service: spec.name,
    family,
    // All endpoints of a slice have the same port, so the first one tells it.
    ports: [
      { name: spec.portName, protocol: spec.protocol, port: spec.endpoints[0]?.port ?? 8080 },
    ],
    endpoints: spec.endpoints.map((endpoint) => ({
      ip: endpoint.ip,
      ready: endpoint.ready ?? true,
      serving: endpoint.serving ?? endpoint.ready ?? true,
      terminating: endpoint.terminating ?? false,
      nodeName: (endpoint.local ?? true) ? testNode : 'node-2',
      zoneHints: endpoint.zoneHints,
      nodeHints: endpoint.nodeHints,
      weight: endpoint.weight ?? 1,
    })),
    triggerTime: undefined,
  })
}
