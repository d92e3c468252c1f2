import { isLinkLocal, isLoopback, isUnspecified, parseCidr, parseIp } from '../../../state/ip.js'
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
import { isLabelName, isPortName, isSubdomain, validateLabels } from '../names.js'
import type { KubeObject } from '../object.js'
import {
  duplicate,
  forbiddenField,
  invalidValue,
  notSupported,
  required,
  type Cause,
} from '../status.js'
import { isExternallyAccessible, isHeadless, wantsHealthCheckPort } from './service-defaults.js'

const types = ['ClusterIP', 'ExternalName', 'LoadBalancer', 'NodePort']
const protocols = ['SCTP', 'TCP', 'UDP']
const policies = ['Cluster', 'Local']
const familyPolicies = ['PreferDualStack', 'RequireDualStack', 'SingleStack']
const distributions = ['PreferClose', 'PreferSameNode', 'PreferSameZone']

/** The rules a Service must keep, taken alone, with its defaults already set. */
export function validateService(service: KubeObject): readonly Cause[] {
  const spec = objectAt(service, 'spec')
  return [
    ...oneOf(spec, 'type', types),
    ...validatePorts(spec),
    ...validateAffinity(spec),
    ...validateAddresses(spec),
    ...validatePolicies(spec),
    ...validateLabels('spec.selector', objectAt(spec, 'selector')),
    ...validateExternal(spec),
  ]
}

/** What may not change once it was given. */
export function validateServiceUpdate(service: KubeObject, previous: KubeObject): readonly Cause[] {
  const spec = objectAt(service, 'spec')
  const before = objectAt(previous, 'spec')
  const wasExternal = textAt(before, 'type') === 'ExternalName'
  if (wasExternal || textAt(spec, 'type') === 'ExternalName') return []
  const causes: Cause[] = []
  const ip = textAt(spec, 'clusterIP')
  const [first, second] = textsAt(spec, 'clusterIPs')
  const [firstBefore, secondBefore] = textsAt(before, 'clusterIPs')
  if (ip !== textAt(before, 'clusterIP') || first !== firstBefore) {
    causes.push(
      invalidValue('spec.clusterIPs[0]', textsAt(spec, 'clusterIPs'), 'may not change once set'),
    )
  }
  if (second !== undefined && secondBefore !== undefined && second !== secondBefore) {
    causes.push(
      invalidValue('spec.clusterIPs[1]', textsAt(spec, 'clusterIPs'), 'may not change once set'),
    )
  }
  const family = textsAt(spec, 'ipFamilies')[0]
  const familyBefore = textsAt(before, 'ipFamilies')[0]
  if (familyBefore !== undefined && family !== familyBefore) {
    causes.push(
      invalidValue('spec.ipFamilies[0]', textsAt(spec, 'ipFamilies'), 'may not change once set'),
    )
  }
  const health = numberAt(spec, 'healthCheckNodePort') ?? 0
  const healthBefore = numberAt(before, 'healthCheckNodePort') ?? 0
  if (wantsHealthCheckPort(spec) && wantsHealthCheckPort(before) && health !== healthBefore) {
    causes.push(forbiddenField('spec.healthCheckNodePort', 'field is immutable'))
  }
  return causes
}

function oneOf(spec: JsonObject, field: string, valid: readonly string[]): readonly Cause[] {
  const value = spec[field]
  if (value === undefined || (typeof value === 'string' && valid.includes(value))) return []
  return [notSupported(`spec.${field}`, value, valid)]
}

function validatePorts(spec: JsonObject): readonly Cause[] {
  const ports = listAt(spec, 'ports')
  const needsPorts = !isHeadless(spec) && textAt(spec, 'type') !== 'ExternalName'
  if (ports.length === 0) return needsPorts ? [required('spec.ports')] : []
  const causes: Cause[] = []
  const names = new Set<string>()
  const numbers = new Set<string>()
  const nodePorts = new Set<string>()
  for (const [index, port] of ports.entries()) {
    const field = `spec.ports[${index}]`
    causes.push(...validatePort(port, field, { spec, needsName: ports.length > 1 }))
    const protocol = textAt(port, 'protocol')
    const name = textAt(port, 'name')
    if (name !== '' && names.has(name)) causes.push(duplicate(`${field}.name`, name))
    names.add(name)
    const number = `${protocol} ${numberAt(port, 'port') ?? 0}`
    if (numbers.has(number))
      causes.push(duplicate(field, { port: numberAt(port, 'port'), protocol }))
    numbers.add(number)
    const nodePort = numberAt(port, 'nodePort') ?? 0
    const nodeKey = `${protocol} ${nodePort}`
    if (nodePort !== 0 && nodePorts.has(nodeKey))
      causes.push(duplicate(`${field}.nodePort`, nodePort))
    nodePorts.add(nodeKey)
  }
  return causes
}

function validatePort(
  port: Json,
  field: string,
  context: { readonly spec: JsonObject; readonly needsName: boolean },
): readonly Cause[] {
  if (!isObject(port)) return [invalidValue(field, port, 'must be an object')]
  const causes: Cause[] = []
  const name = textAt(port, 'name')
  if (name === '' && context.needsName) causes.push(required(`${field}.name`))
  if (name !== '' && !isLabelName(name)) {
    causes.push(
      invalidValue(
        `${field}.name`,
        name,
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
      ),
    )
  }
  const range = 'must be between 1 and 65535, inclusive'
  if (!isPort(port['port'])) causes.push(invalidValue(`${field}.port`, port['port'], range))
  const protocol = textAt(port, 'protocol')
  if (!protocols.includes(protocol)) {
    causes.push(notSupported(`${field}.protocol`, protocol, protocols))
  }
  const target = port['targetPort']
  if (typeof target === 'string' ? !isPortName(target) : !isPort(target)) {
    const why =
      typeof target === 'string'
        ? 'must be a port name: at most 15 lower case letters, digits and dashes, with a letter'
        : range
    causes.push(invalidValue(`${field}.targetPort`, target, why))
  }
  const type = textAt(context.spec, 'type')
  const nodePort = port['nodePort'] ?? 0
  if (nodePort !== 0 && !isPort(nodePort)) {
    causes.push(invalidValue(`${field}.nodePort`, nodePort, range))
  } else if (nodePort !== 0 && type !== 'NodePort' && type !== 'LoadBalancer') {
    causes.push(forbiddenField(`${field}.nodePort`, `may not be used when \`type\` is '${type}'`))
  }
  return causes
}

function isPort(value: Json | undefined): boolean {
  return typeof value === 'number' && Number.isInteger(value) && value >= 1 && value <= 65_535
}

function validateAffinity(spec: JsonObject): readonly Cause[] {
  const causes = [...oneOf(spec, 'sessionAffinity', ['ClientIP', 'None'])]
  const config = spec['sessionAffinityConfig']
  const seconds = numberAt(config, 'clientIP', 'timeoutSeconds')
  const field = 'spec.sessionAffinityConfig.clientIP.timeoutSeconds'
  if (textAt(spec, 'sessionAffinity') === 'None') {
    if (isObject(config)) {
      causes.push(
        forbiddenField(
          'spec.sessionAffinityConfig',
          "must not be set when session affinity is 'None'",
        ),
      )
    }
  } else if (
    seconds !== undefined &&
    !(Number.isInteger(seconds) && seconds >= 1 && seconds <= 86_400)
  ) {
    causes.push(invalidValue(field, seconds, 'must be greater than 0 and less than 86400'))
  }
  return causes
}

function validateAddresses(spec: JsonObject): readonly Cause[] {
  const clusterIp = textAt(spec, 'clusterIP')
  const clusterIps = textsAt(spec, 'clusterIPs')
  const type = textAt(spec, 'type')
  if (type === 'ExternalName') {
    return clusterIp === '' && clusterIps.length === 0
      ? []
      : [forbiddenField('spec.clusterIPs', "may not be set when `type` is 'ExternalName'")]
  }
  const causes: Cause[] = [...oneOf(spec, 'ipFamilyPolicy', familyPolicies)]
  if (isHeadless(spec) && type !== 'ClusterIP') {
    causes.push(
      invalidValue('spec.clusterIPs[0]', 'None', `may not be set to 'None' for ${type} services`),
    )
  }
  if (clusterIp === '' && clusterIps.length > 0) {
    causes.push(
      invalidValue(
        'spec.clusterIPs',
        clusterIps,
        'must be empty when `clusterIP` is not specified',
      ),
    )
  } else if (clusterIp !== (clusterIps[0] ?? '')) {
    causes.push(invalidValue('spec.clusterIPs', clusterIps, 'first value must match `clusterIP`'))
  }
  if (clusterIps.length > 2) {
    causes.push(invalidValue('spec.clusterIPs', clusterIps, 'may only hold up to 2 values'))
  }
  for (const [index, ip] of clusterIps.entries()) {
    if (ip !== 'None' && parseIp(ip) === undefined) {
      causes.push(invalidValue(`spec.clusterIPs[${index}]`, ip, 'must be a valid IP address'))
    }
  }
  for (const [index, family] of listAt(spec, 'ipFamilies').entries()) {
    if (family !== 'IPv4' && family !== 'IPv6') {
      causes.push(notSupported(`spec.ipFamilies[${index}]`, family, ['IPv4', 'IPv6']))
    }
  }
  return causes
}

function validatePolicies(spec: JsonObject): readonly Cause[] {
  const causes: Cause[] = [
    ...oneOf(spec, 'internalTrafficPolicy', policies),
    ...oneOf(spec, 'externalTrafficPolicy', policies),
    ...oneOf(spec, 'trafficDistribution', distributions),
  ]
  const external = spec['externalTrafficPolicy']
  if (external !== undefined && !isExternallyAccessible(spec, textAt(spec, 'type'))) {
    causes.push(
      invalidValue(
        'spec.externalTrafficPolicy',
        external,
        'may only be set for externally-accessible services',
      ),
    )
  }
  const health = spec['healthCheckNodePort'] ?? 0
  if (health !== 0 && !wantsHealthCheckPort(spec)) {
    causes.push(
      invalidValue(
        'spec.healthCheckNodePort',
        health,
        "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
      ),
    )
  }
  return causes
}

function validateExternal(spec: JsonObject): readonly Cause[] {
  const causes: Cause[] = []
  const type = textAt(spec, 'type')
  for (const [index, text] of textsAt(spec, 'externalIPs').entries()) {
    const ip = parseIp(text)
    const field = `spec.externalIPs[${index}]`
    if (ip === undefined) causes.push(invalidValue(field, text, 'must be a valid IP address'))
    else if (isUnspecified(ip))
      causes.push(invalidValue(field, text, 'may not be unspecified (0.0.0.0 or ::)'))
    else if (isLoopback(ip))
      causes.push(
        invalidValue(field, text, 'may not be in the loopback range (127.0.0.0/8, ::1/128)'),
      )
    else if (isLinkLocal(ip))
      causes.push(
        invalidValue(field, text, 'may not be in the link-local range (169.254.0.0/16, fe80::/10)'),
      )
  }
  for (const [index, text] of textsAt(spec, 'loadBalancerSourceRanges').entries()) {
    const field = `spec.loadBalancerSourceRanges[${index}]`
    if (type !== 'LoadBalancer')
      causes.push(forbiddenField(field, "may only be used when `type` is 'LoadBalancer'"))
    else if (parseCidr(text.trim()) === undefined) {
      causes.push(
        invalidValue(
          field,
          text,
          'must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)',
        ),
      )
    }
  }
  if (type === 'ExternalName') {
    const name = textAt(spec, 'externalName')
    if (name === '') causes.push(required('spec.externalName'))
    else if (!isSubdomain(name))
      causes.push(invalidValue('spec.externalName', name, 'must be a lowercase RFC 1123 subdomain'))
  }
  return causes
}
