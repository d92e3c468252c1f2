import { asArray, asObject, asString, type Json } from '../state/json.js'
import { familyOf, ipFamilies } from '../state/ip.js'
import type { ManifestObject } from './manifest-file.js'
import type { ObjectKind } from './source.js'

const serviceLabel = 'kubernetes.io/service-name'

/**
 * Makes EndpointSlices from Endpoints (E22). In a cluster a controller does this; a folder has no
 * controller. Endpoints of a Service that has slices are left out.
 */
export function mirrorEndpoints(
  objects: readonly ManifestObject[],
): readonly ManifestObject<ObjectKind>[] {
  const sliced = new Set(
    objects.flatMap(({ kind, namespace, raw }) => {
      const service = asObject(asObject(raw.metadata)?.labels)?.[serviceLabel]
      return kind === 'EndpointSlice' && typeof service === 'string'
        ? [`${namespace}/${service}`]
        : []
    }),
  )
  return objects.flatMap((object) => {
    const { kind } = object
    if (kind !== 'Endpoints') return [{ ...object, kind }]
    return sliced.has(`${object.namespace}/${object.name}`) ? [] : slicesOf(object)
  })
}

function slicesOf(endpoints: ManifestObject): ManifestObject<ObjectKind>[] {
  const { namespace, name, raw, place } = endpoints
  return (asArray(raw.subsets) ?? []).flatMap((subset, index) =>
    ipFamilies.flatMap((addressType): ManifestObject<ObjectKind>[] => {
      const parts = asObject(subset)
      const addresses = [
        ...endpointsOf(parts?.addresses, addressType, true),
        ...endpointsOf(parts?.notReadyAddresses, addressType, false),
      ]
      if (addresses.length === 0) return []
      const slice = `${name}-${index}-${addressType.toLowerCase()}`
      const metadata = { name: slice, namespace, labels: { [serviceLabel]: name } }
      const ports = (asArray(parts?.ports) ?? []).map((port) => ({
        ...asObject(port),
        // A port of Endpoints without a name has the empty name.
        name: asString(asObject(port)?.name) ?? '',
      }))
      return [
        {
          kind: 'EndpointSlice',
          namespace,
          name: slice,
          place,
          raw: {
            apiVersion: 'discovery.k8s.io/v1',
            kind: 'EndpointSlice',
            metadata,
            addressType,
            ports,
            endpoints: addresses,
          },
        },
      ]
    }),
  )
}

function endpointsOf(addresses: unknown, addressType: string, ready: boolean): Json[] {
  return (asArray(addresses) ?? []).flatMap((item) => {
    const address = asObject(item)
    const ip = asString(address?.ip)
    if (ip === undefined || familyOf(ip) !== addressType) return []
    const nodeName = asString(address?.nodeName)
    return [
      { addresses: [ip], conditions: { ready }, ...(nodeName === undefined ? {} : { nodeName }) },
    ]
  })
}
