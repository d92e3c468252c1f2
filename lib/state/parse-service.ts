import { asArray, asInteger, asObject, show, strings, type Json } from './json.js'
import { isUnspecified, parseObjectCidr, parseObjectIp, type IpFamily } from './ip.js'
import {
  MalformedObject,
  identityOf,
  readHead,
  readPortName,
  readProtocol,
} from './parse-object.js'
import { annotationWarnings } from './annotation-warnings.js'
import { optionPrefix } from './annotations.js'
import { printable } from './names.js'
import type { Parsed, ServiceObject, ServicePortObject } from './objects.js'

const proxyNameLabel = 'service.kubernetes.io/service-proxy-name'
/** Enough for long lists of names. */
const maxOptionLength = 4096
const defaultAffinitySeconds = 10_800
const maxAffinitySeconds = 86_400

/** Parses a Service from the API or a file. Never throws. */
export function parseService(raw: unknown): Parsed<ServiceObject> {
  try {
    const { identity, metadata, body } = readHead(raw, true)
    if (asObject(metadata.labels)?.[proxyNameLabel] !== undefined) {
      return {
        outcome: 'ignored',
        identity,
        reason: `label ${proxyNameLabel} gives the Service to another proxy`,
      }
    }
    const spec = asObject(body.spec)
    if (!spec) throw new MalformedObject('spec is missing')
    const warnings: string[] = []
    const clusterIps = spec.type === 'ExternalName' ? {} : readClusterIps(spec)
    const value: ServiceObject = {
      // Every field by name: V8 gives each object made with a spread its own hidden class.
      namespace: identity.namespace,
      name: identity.name,
      clusterIps,
      ports: Object.keys(clusterIps).length > 0 ? readPorts(spec) : [],
      externalIps: readIps(strings(spec.externalIPs), 'spec.externalIPs', warnings),
      loadBalancerIps: readIngress(body, spec, warnings),
      sourceRanges: readSourceRanges(spec),
      affinitySeconds: readAffinity(spec, warnings),
      internalPolicyLocal: spec.internalTrafficPolicy === 'Local',
      externalPolicyLocal: spec.externalTrafficPolicy === 'Local',
      healthCheckNodePort: readHealthCheckNodePort(spec, warnings),
      options: readOptions(metadata, warnings),
    }
    warnings.push(...annotationWarnings(value.options))
    return { outcome: 'accepted', value, warnings }
  } catch (error) {
    if (!(error instanceof MalformedObject)) throw error
    return { outcome: 'malformed', identity: identityOf(raw), reason: error.message }
  }
}

/** The ClusterIPs by family, from clusterIPs or without that list from clusterIP (S02, S06). */
function readClusterIps(spec: Json): Partial<Record<IpFamily, string>> {
  const listed = strings(spec.clusterIPs)
  const texts = listed.length > 0 ? listed : strings([spec.clusterIP])
  const found: Partial<Record<IpFamily, string>> = {}
  for (const text of texts) {
    if (text === '' || text === 'None') continue
    const ip = parseObjectIp(text)
    if (!ip) throw new MalformedObject(`spec.clusterIPs ${show(text)} is not an IP address`)
    found[ip.family] ??= ip.text
  }
  return found
}

function readPorts(spec: Json): readonly ServicePortObject[] {
  const raw = asArray(spec.ports)
  if (!raw) throw new MalformedObject(`spec.ports ${show(spec.ports)} is not a list`)
  const seen = new Set<string>()
  return raw.map((item, index) => {
    const where = `spec.ports[${index}]`
    const port = asObject(item)
    if (!port) throw new MalformedObject(`${where} ${show(item)} is not an object`)
    const number = asInteger(port.port, 1, 65_535)
    if (number === undefined) {
      throw new MalformedObject(`${where}.port ${show(port.port)} is not a port number`)
    }
    const nodePort = asInteger(port.nodePort ?? 0, 0, 65_535)
    if (nodePort === undefined) {
      throw new MalformedObject(`${where}.nodePort ${show(port.nodePort)} is not a port number`)
    }
    const name = readPortName(port.name, `${where}.name`)
    const protocol = readProtocol(port.protocol, `${where}.protocol`)
    const identity = `${name}/${protocol}`
    if (seen.has(identity)) throw new MalformedObject(`${where}: ${identity} appears twice`)
    seen.add(identity)
    return { name, protocol, port: number, nodePort }
  })
}

function readIps(texts: readonly string[], where: string, warnings: string[]): readonly string[] {
  const found = new Set<string>()
  for (const text of texts) {
    const ip = parseObjectIp(text)
    // A listener on 0.0.0.0 would serve at every address of the node.
    if (ip && isUnspecified(ip))
      warnings.push(`${where}: ${show(text)} is the address of no Service and is left out`)
    else if (ip) found.add(ip.text)
    else warnings.push(`${where}: ${show(text)} is not an IP address and is left out`)
  }
  return [...found]
}

/** S10, S11: entries with ipMode Proxy or without an IP are left out. */
function readIngress(body: Json, spec: Json, warnings: string[]): readonly string[] {
  if (spec.type !== undefined && spec.type !== 'LoadBalancer') return []
  const ingress = asArray(asObject(asObject(body.status)?.loadBalancer)?.ingress) ?? []
  const served = ingress.map(asObject).filter((entry) => (entry?.ipMode ?? 'VIP') === 'VIP')
  const texts = strings(served.map((entry) => entry?.ip)).filter((ip) => ip !== '')
  return readIps(texts, 'status.loadBalancer.ingress', warnings)
}

/**
 * S12: a range that cannot be read makes the Service malformed, because without it the filter could
 * allow every client.
 */
function readSourceRanges(spec: Json): readonly string[] {
  const found = new Set<string>()
  for (const text of strings(spec.loadBalancerSourceRanges)) {
    const cidr = parseObjectCidr(text.trim())
    if (!cidr)
      throw new MalformedObject(`spec.loadBalancerSourceRanges ${show(text)} is not a CIDR`)
    found.add(cidr.text)
  }
  return [...found]
}

function readAffinity(spec: Json, warnings: string[]): number | undefined {
  if (spec.sessionAffinity !== 'ClientIP') return undefined
  const config = asObject(asObject(spec.sessionAffinityConfig)?.clientIP)
  const seconds = config?.timeoutSeconds
  if (seconds === undefined || seconds === null) return defaultAffinitySeconds
  const valid = asInteger(seconds, 1, maxAffinitySeconds)
  if (valid === undefined) {
    warnings.push(
      `spec.sessionAffinityConfig.clientIP.timeoutSeconds: ${show(seconds)} is not within ` +
        `1-${maxAffinitySeconds}; ${defaultAffinitySeconds} is used`,
    )
  }
  return valid ?? defaultAffinitySeconds
}

function readHealthCheckNodePort(spec: Json, warnings: string[]): number {
  if (spec.type !== 'LoadBalancer' || spec.externalTrafficPolicy !== 'Local') return 0
  const port = asInteger(spec.healthCheckNodePort, 1, 65_535)
  if (port === undefined) {
    warnings.push('spec.healthCheckNodePort: no valid port is set, so no health check is served')
  }
  return port ?? 0
}

function readOptions(metadata: Json, warnings: string[]): Readonly<Record<string, string>> {
  const options: Record<string, string> = {}
  for (const [key, value] of Object.entries(asObject(metadata.annotations) ?? {})) {
    if (!key.startsWith(optionPrefix) || typeof value !== 'string') continue
    const name = key.slice(optionPrefix.length)
    if (value.length <= maxOptionLength) options[name] = value
    else
      warnings.push(
        `annotation ${printable(show(key))}: longer than ${maxOptionLength} characters, has no effect`,
      )
  }
  return options
}
