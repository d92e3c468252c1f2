import { addressOf, families, type Place } from '../../lib/lab/world/topology.js'
import { endpoint, rawService, rawSlice } from '../state/objects.js'

/** The objects of a stage, in both IP families. */

export interface ClusterObject {
  readonly apiVersion: string
  readonly kind: string
  readonly metadata: { readonly name: string; readonly namespace?: string }
}

export interface ServiceAddress {
  readonly IPv4: string
  readonly IPv6: string
}

/** The Service that clients use all the time. It does not change. */
export const steady = { name: 'steady', number: 10, port: 80, udpPort: 53, nodePort: 30_080 }
/** Its endpoint and its port change, to show that changes of both kinds of objects arrive. */
export const probe = { name: 'probe', number: 11, ports: [80, 81] } as const
/** The number of the first filler. Fillers are the many Services that change in a storm. */
const firstFiller = 256
/** The number of a filler that no stage has at its start. */
export const added = 5_000

export function serviceAddress(number: number): ServiceAddress {
  return {
    IPv4: `10.96.${number >> 8}.${number & 255}`,
    IPv6: `fd00:10:96::${number.toString(16)}`,
  }
}

export const fillerName = (index: number) => `filler-${index}`
export const fillerAddress = (index: number) => serviceAddress(firstFiller + index)

const nodeOf = (place: Place) => (place === 'pod-4' || place === 'pod-5' ? 'node-2' : 'node-1')

function dualStack(name: string, number: number, spec: object): ClusterObject {
  const { IPv4, IPv6 } = serviceAddress(number)
  return rawService({
    name,
    spec: {
      clusterIP: IPv4,
      clusterIPs: [IPv4, IPv6],
      ipFamilies: families,
      ipFamilyPolicy: 'RequireDualStack',
      ...spec,
    },
  })
}

/** The slices of a Service, one for each family. */
export function slicesOf(
  service: string,
  pods: readonly Place[],
  ports: readonly object[] = [{ name: 'http', protocol: 'TCP', port: 8080 }],
): readonly ClusterObject[] {
  return families.map((family) =>
    rawSlice({
      name: `${service}-${family.toLowerCase()}`,
      service,
      addressType: family,
      ports,
      endpoints: pods.map((pod) => endpoint(addressOf(pod, family), { node: nodeOf(pod) })),
    }),
  )
}

export function filler(index: number, pods: readonly Place[]): readonly ClusterObject[] {
  const name = fillerName(index)
  return [dualStack(name, firstFiller + index, {}), ...slicesOf(name, pods)]
}

export const probeService = (port: number) =>
  dualStack(probe.name, probe.number, {
    ports: [{ name: 'http', protocol: 'TCP', port, targetPort: 8080 }],
  })

/** The objects of every stage besides its fillers. */
export function firstObjects(): readonly ClusterObject[] {
  const { name, number, port, udpPort, nodePort } = steady
  const node = {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: 'node-1' },
    status: {
      addresses: families.map((family) => ({
        type: 'InternalIP',
        address: addressOf('node', family),
      })),
    },
  }
  const ports = [
    { name: 'http', protocol: 'TCP', port, targetPort: 8080, nodePort },
    { name: 'dns', protocol: 'UDP', port: udpPort, targetPort: 8080, nodePort: nodePort + 1 },
  ]
  const targets = [
    { name: 'http', protocol: 'TCP', port: 8080 },
    { name: 'dns', protocol: 'UDP', port: 8080 },
  ]
  return [
    node,
    dualStack(name, number, { type: 'NodePort', ports }),
    ...slicesOf(name, ['pod-1', 'pod-2', 'pod-4'], targets),
    probeService(probe.ports[0]),
    ...slicesOf(probe.name, ['pod-1']),
  ]
}
