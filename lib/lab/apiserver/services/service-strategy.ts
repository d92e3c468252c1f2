import { familyOf, parseIp, type IpFamily } from '../../../state/ip.js'
import {
  isObject,
  listAt,
  numberAt,
  objectAt,
  textAt,
  textsAt,
  type Json,
  type JsonObject,
} from '../json.js'
import type { KubeObject } from '../object.js'
import type { Strategy } from '../registry.js'
import { forbiddenField, invalid, invalidValue, refuse } from '../status.js'
import type { Refuse, ServiceAllocations } from './allocation.js'
import {
  isHeadless,
  wantsHealthCheckPort,
  wantsNodePorts,
  withAllocatedValues,
  withServiceDefaults,
} from './service-defaults.js'
import { validateService, validateServiceUpdate } from './service-validation.js'

const subject = { group: '', plural: 'services', kind: 'Service' }

/** How a Service is written: defaults, then rules, then addresses and ports. */
export function serviceStrategy(allocations: ServiceAllocations): Strategy {
  return {
    prepare(object, previous) {
      const given = withServiceDefaults(object)
      const whole = withAllAddresses(previous ? withAllocatedValues(given, previous) : given)
      refuse(subject, whole, [
        ...validateService(whole),
        ...(previous ? validateServiceUpdate(whole, previous) : []),
      ])
      return allocate(whole, allocations, previous === undefined)
    },
  }
}

/** clusterIP alone means a list of one. */
function withAllAddresses(service: KubeObject): KubeObject {
  const clusterIp = textAt(service, 'spec', 'clusterIP')
  if (clusterIp === '' || listAt(service, 'spec', 'clusterIPs').length > 0) return service
  return { ...service, spec: { ...objectAt(service, 'spec'), clusterIPs: [clusterIp] } }
}

function allocate(
  service: KubeObject,
  allocations: ServiceAllocations,
  isNew: boolean,
): KubeObject {
  const spec = objectAt(service, 'spec')
  if (textAt(spec, 'type') === 'ExternalName') return service
  const addresses = allocateAddresses(service, allocations)
  const ports = allocatePorts(service, allocations, isNew)
  return { ...service, spec: { ...spec, ...addresses, ...ports } }
}

function allocateAddresses(service: KubeObject, allocations: ServiceAllocations): JsonObject {
  const spec = objectAt(service, 'spec')
  const given = textsAt(spec, 'clusterIPs')
  const { families, policy } = familiesOf(service, allocations.families())
  if (isHeadless(spec)) {
    return { clusterIP: 'None', clusterIPs: ['None'], ipFamilies: families, ipFamilyPolicy: policy }
  }
  const clusterIPs = families.map((family, index) => {
    const asked = given[index]
    const refuseIps = refuser(service, 'spec.clusterIPs', given)
    if (asked === undefined) return allocations.freeIp(family, refuseIps)
    if (familyOf(asked) !== family) {
      const why = `expected an ${family} value as indicated by \`ipFamilies[${index}]\``
      refuser(service, `spec.clusterIPs[${index}]`, asked)(why)
    }
    allocations.checkIp(asked, service, refuseIps)
    return parseIp(asked)?.text ?? asked
  })
  return { clusterIP: clusterIPs[0], clusterIPs, ipFamilies: families, ipFamilyPolicy: policy }
}

interface Families {
  readonly families: readonly IpFamily[]
  readonly policy: string
}

/** The families of the Service, from its fields and from the families of the cluster. */
function familiesOf(service: KubeObject, cluster: readonly IpFamily[]): Families {
  const spec = objectAt(service, 'spec')
  const hasSelector = Object.keys(objectAt(spec, 'selector')).length > 0
  const isOpenHeadless = isHeadless(spec) && !hasSelector
  const policy =
    textAt(spec, 'ipFamilyPolicy') || (isOpenHeadless ? 'RequireDualStack' : 'SingleStack')
  const named = textsAt(spec, 'ipFamilies').filter(isFamily)
  const implied = textsAt(spec, 'clusterIPs').flatMap((ip) => familyOf(ip) ?? [])
  const wanted = named.length > 0 ? named : implied
  const first = wanted[0] ?? cluster[0] ?? 'IPv4'
  const causes = wanted.flatMap((family, index) =>
    // The author of a headless Service without selector manages its endpoints by hand.
    cluster.includes(family) || isOpenHeadless
      ? []
      : [invalidValue(`spec.ipFamilies[${index}]`, family, 'not configured on this cluster')],
  )
  if (policy === 'SingleStack') {
    if (wanted.length > 1) {
      causes.push(
        invalidValue(
          'spec.ipFamilyPolicy',
          policy,
          'must be RequireDualStack or PreferDualStack when multiple families or addresses are specified',
        ),
      )
    }
    refuse(subject, service, causes)
    return { families: [first], policy }
  }
  const both: readonly IpFamily[] = isOpenHeadless ? ['IPv4', 'IPv6'] : cluster
  const families = [first, ...both.filter((family) => family !== first)]
  if (policy === 'RequireDualStack' && families.length < 2) {
    causes.push(
      forbiddenField(
        'spec.ipFamilyPolicy',
        'this cluster is not configured for dual-stack services',
      ),
    )
  }
  refuse(subject, service, causes)
  return { families, policy }
}

function isFamily(text: string): text is IpFamily {
  return text === 'IPv4' || text === 'IPv6'
}

function allocatePorts(
  service: KubeObject,
  allocations: ServiceAllocations,
  isNew: boolean,
): JsonObject {
  const spec = objectAt(service, 'spec')
  const ports = [...listAt(spec, 'ports')]
  const nodePortOf = (port: Json | undefined) => numberAt(port, 'nodePort') ?? 0
  const taken = new Set(ports.map(nodePortOf))
  for (const [index, port] of ports.entries()) {
    if (!isObject(port)) continue
    const field = `spec.ports[${index}].nodePort`
    const nodePort = nodePortOf(port)
    if (nodePort !== 0) {
      allocations.checkPort(nodePort, service, refuser(service, field, nodePort))
    } else if (wantsNodePorts(spec)) {
      // In a new Service the protocols of one port share a node port.
      const isTwin = (other: Json) =>
        numberAt(other, 'port') === port['port'] && nodePortOf(other) !== 0
      const twin = isNew ? ports.find(isTwin) : undefined
      const free = twin ? nodePortOf(twin) : allocations.freePort(taken, refuser(service, field, 0))
      const isHolder = (other: Json) =>
        nodePortOf(other) === free && textAt(other, 'protocol') === textAt(port, 'protocol')
      if (ports.some(isHolder)) refuser(service, field, free)('provided port is already allocated')
      taken.add(free)
      ports[index] = { ...port, nodePort: free }
    }
  }
  const result: JsonObject = ports.length === 0 ? {} : { ports }
  if (!wantsHealthCheckPort(spec)) return result
  const health = numberAt(spec, 'healthCheckNodePort') ?? 0
  const refuseHealth = refuser(service, 'spec.healthCheckNodePort', health)
  if (health === 0) {
    return { ...result, healthCheckNodePort: allocations.freePort(taken, refuseHealth) }
  }
  allocations.checkPort(health, service, refuseHealth)
  return { ...result, healthCheckNodePort: health }
}

/** Refuses the Service because of this value. */
function refuser(service: KubeObject, field: string, value: unknown): Refuse {
  return (why) => {
    throw invalid(subject, service.metadata.name, [invalidValue(field, value, why)])
  }
}
