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
import { isLabelName, isPortName, isSubdomain, labelRule, validateLabels } from '../names.js'
import type { KubeObject } from '../object.js'
import {
  causesOf,
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

/** Checks a Service by itself, after its defaults are set. */
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

/** Checks the fields that must not change. */
export function validateServiceUpdate(service: KubeObject, previous: KubeObject): readonly Cause[] {
  const spec = objectAt(service, 'spec')
  const before = objectAt(previous, 'spec')
  const wasExternal = textAt(before, 'type') === 'ExternalName'
  if (wasExternal || textAt(spec, 'type') === 'ExternalName') return []
  const ips = textsAt(spec, 'clusterIPs')
  const [first, second] = ips
  const [firstBefore, secondBefore] = textsAt(before, 'clusterIPs')
  const isFirstOther =
    textAt(spec, 'clusterIP') !== textAt(before, 'clusterIP') || first !== firstBefore
  const isSecondOther =
    second !== undefined && secondBefore !== undefined && second !== secondBefore
  const families = textsAt(spec, 'ipFamilies')
  const [familyBefore] = textsAt(before, 'ipFamilies')
  const isFamilyOther = familyBefore !== undefined && families[0] !== familyBefore
  const hadHealthPort = wantsHealthCheckPort(spec) && wantsHealthCheckPort(before)
  const healthOf = (of: JsonObject) => numberAt(of, 'healthCheckNodePort') ?? 0
  const fixed = 'may not change once set'
  return causesOf(
    isFirstOther && invalidValue('spec.clusterIPs[0]', ips, fixed),
    isSecondOther && invalidValue('spec.clusterIPs[1]', ips, fixed),
    isFamilyOther && invalidValue('spec.ipFamilies[0]', families, fixed),
    hadHealthPort &&
      healthOf(spec) !== healthOf(before) &&
      forbiddenField('spec.healthCheckNodePort', 'field is immutable'),
  )
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
  const isNew = firstOfEach()
  return ports.flatMap((port, index) => {
    const field = `spec.ports[${index}]`
    const protocol = textAt(port, 'protocol')
    const name = textAt(port, 'name')
    const number = numberAt(port, 'port')
    const nodePort = numberAt(port, 'nodePort') ?? 0
    return [
      ...validatePort(port, field, { spec, needsName: ports.length > 1 }),
      ...causesOf(
        !isNew(`name ${name}`) && name !== '' && duplicate(`${field}.name`, name),
        !isNew(`port ${protocol} ${number ?? 0}`) && duplicate(field, { port: number, protocol }),
        !isNew(`nodePort ${protocol} ${nodePort}`) &&
          nodePort !== 0 &&
          duplicate(`${field}.nodePort`, nodePort),
      ),
    ]
  })
}

/** Tells of each key whether it comes for the first time. */
function firstOfEach(): (key: string) => boolean {
  const seen = new Set<string>()
  return (key) => seen.size < seen.add(key).size
}

function validatePort(
  port: Json,
  field: string,
  context: { readonly spec: JsonObject; readonly needsName: boolean },
): readonly Cause[] {
  if (!isObject(port)) return [invalidValue(field, port, 'must be an object')]
  const name = textAt(port, 'name')
  const protocol = textAt(port, 'protocol')
  const target = port['targetPort']
  const nodePort = port['nodePort'] ?? 0
  const type = textAt(context.spec, 'type')
  const range = 'must be between 1 and 65535, inclusive'
  const isNamed = typeof target === 'string'
  const named =
    'must be a port name: at most 15 lower case letters, digits and dashes, with a letter'
  const isNodePortWrong = nodePort !== 0 && !isPort(nodePort)
  const takesNodePort = type === 'NodePort' || type === 'LoadBalancer'
  return causesOf(
    name === '' && context.needsName && required(`${field}.name`),
    name !== '' && !isLabelName(name) && invalidValue(`${field}.name`, name, labelRule),
    !isPort(port['port']) && invalidValue(`${field}.port`, port['port'], range),
    !protocols.includes(protocol) && notSupported(`${field}.protocol`, protocol, protocols),
    !(isNamed ? isPortName(target) : isPort(target)) &&
      invalidValue(`${field}.targetPort`, target, isNamed ? named : range),
    isNodePortWrong && invalidValue(`${field}.nodePort`, nodePort, range),
    nodePort !== 0 &&
      !isNodePortWrong &&
      !takesNodePort &&
      forbiddenField(`${field}.nodePort`, `may not be used when \`type\` is '${type}'`),
  )
}

function isPort(value: Json | undefined): boolean {
  return typeof value === 'number' && Number.isInteger(value) && value >= 1 && value <= 65_535
}

function validateAffinity(spec: JsonObject): readonly Cause[] {
  const seconds = numberAt(spec, 'sessionAffinityConfig', 'clientIP', 'timeoutSeconds') ?? 1
  const isFine = Number.isInteger(seconds) && seconds >= 1 && seconds <= 86_400
  return [
    ...oneOf(spec, 'sessionAffinity', ['ClientIP', 'None']),
    ...causesOf(
      !isFine &&
        invalidValue(
          'spec.sessionAffinityConfig.clientIP.timeoutSeconds',
          seconds,
          'must be greater than 0 and less than 86400',
        ),
    ),
  ]
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
  const field = 'spec.clusterIPs'
  const isHidden = clusterIp === '' && clusterIps.length > 0
  const isOther = clusterIp !== (clusterIps[0] ?? '')
  return [
    ...oneOf(spec, 'ipFamilyPolicy', familyPolicies),
    ...causesOf(
      isHeadless(spec) &&
        type !== 'ClusterIP' &&
        invalidValue(`${field}[0]`, 'None', `may not be set to 'None' for ${type} services`),
      isHidden &&
        invalidValue(field, clusterIps, 'must be empty when `clusterIP` is not specified'),
      !isHidden && isOther && invalidValue(field, clusterIps, 'first value must match `clusterIP`'),
      clusterIps.length > 2 && invalidValue(field, clusterIps, 'may only hold up to 2 values'),
      ...clusterIps.map(
        (ip, index) =>
          ip !== 'None' &&
          parseIp(ip) === undefined &&
          invalidValue(`${field}[${index}]`, ip, 'must be a valid IP address'),
      ),
      ...listAt(spec, 'ipFamilies').map(
        (family, index) =>
          family !== 'IPv4' &&
          family !== 'IPv6' &&
          notSupported(`spec.ipFamilies[${index}]`, family, ['IPv4', 'IPv6']),
      ),
    ),
  ]
}

function validatePolicies(spec: JsonObject): readonly Cause[] {
  const external = spec['externalTrafficPolicy']
  const health = spec['healthCheckNodePort'] ?? 0
  return [
    ...oneOf(spec, 'internalTrafficPolicy', policies),
    ...oneOf(spec, 'externalTrafficPolicy', policies),
    ...oneOf(spec, 'trafficDistribution', distributions),
    ...causesOf(
      external !== undefined &&
        !isExternallyAccessible(spec, textAt(spec, 'type')) &&
        invalidValue(
          'spec.externalTrafficPolicy',
          external,
          'may only be set for externally-accessible services',
        ),
      health !== 0 &&
        !wantsHealthCheckPort(spec) &&
        invalidValue(
          'spec.healthCheckNodePort',
          health,
          "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        ),
    ),
  ]
}

function validateExternal(spec: JsonObject): readonly Cause[] {
  const type = textAt(spec, 'type')
  const name = textAt(spec, 'externalName')
  const isExternalName = type === 'ExternalName'
  return causesOf(
    ...textsAt(spec, 'externalIPs').map((text, index) => {
      const why = whyNoExternalIp(text)
      return why !== '' && invalidValue(`spec.externalIPs[${index}]`, text, why)
    }),
    ...textsAt(spec, 'loadBalancerSourceRanges').map((text, index) =>
      validateSourceRange(text, `spec.loadBalancerSourceRanges[${index}]`, type),
    ),
    isExternalName && name === '' && required('spec.externalName'),
    isExternalName &&
      name !== '' &&
      !isSubdomain(name) &&
      invalidValue('spec.externalName', name, 'must be a lowercase RFC 1123 subdomain'),
  )
}

function whyNoExternalIp(text: string): string {
  const ip = parseIp(text)
  if (ip === undefined) return 'must be a valid IP address'
  if (isUnspecified(ip)) return 'may not be unspecified (0.0.0.0 or ::)'
  if (isLoopback(ip)) return 'may not be in the loopback range (127.0.0.0/8, ::1/128)'
  return isLinkLocal(ip) ? 'may not be in the link-local range (169.254.0.0/16, fe80::/10)' : ''
}

function validateSourceRange(text: string, field: string, type: string): Cause | false {
  if (type !== 'LoadBalancer') {
    return forbiddenField(field, "may only be used when `type` is 'LoadBalancer'")
  }
  const why = 'must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)'
  return parseCidr(text.trim()) === undefined && invalidValue(field, text, why)
}
