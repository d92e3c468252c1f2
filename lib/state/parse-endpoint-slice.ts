import { asArray, asBoolean, asInteger, asObject, asString, show, strings } from './json.js'
import { isLinkLocal, isLoopback, isMulticast, isUnspecified, parseObjectIp } from './ip.js'
import { annotationProblem, numberAnnotation, optionPrefix, readAnnotation } from './annotations.js'
import { maxWeight } from './balance.js'
import type { Ip, IpFamily } from './ip.js'
import { MalformedObject, identityOf, readHead } from './parse-object.js'
import type {
  EndpointSliceObject,
  Parsed,
  SliceEndpointObject,
  SlicePortObject,
} from './objects.js'
import { protocols } from './names.js'
import type { Json } from './json.js'

const serviceNameLabel = 'kubernetes.io/service-name'
const headlessLabel = 'service.kubernetes.io/headless'
const triggerTimeAnnotation = 'endpoints.kubernetes.io/last-change-trigger-time'
const sliceWeight = numberAnnotation('weight', 0, maxWeight)

export interface EndpointRules {
  /** For a cluster of programs on 127.0.0.0/8. On a real node it would open private services. */
  readonly allowsLoopback?: boolean
}

/** Parses an EndpointSlice from the API or a file. Never throws. */
export function parseEndpointSlice(
  raw: unknown,
  rules: EndpointRules = {},
): Parsed<EndpointSliceObject> {
  try {
    const { identity, metadata, body } = readHead(raw, true)
    const labels = asObject(metadata.labels)
    const annotations = asObject(metadata.annotations)
    if (labels?.[headlessLabel] !== undefined) {
      return { outcome: 'ignored', identity, reason: `label ${headlessLabel}` }
    }
    if (body.addressType === 'FQDN') {
      return {
        outcome: 'ignored',
        identity,
        reason: 'addressType FQDN has no addresses to send to',
      }
    }
    const service = asString(labels?.[serviceNameLabel])
    if (service === undefined || service === '') {
      // Such a slice is valid. One that had the label before serves its Service no longer.
      const reason = `label ${serviceNameLabel} is missing, so the slice belongs to no Service`
      return { outcome: 'ignored', identity, reason, warnings: [reason] }
    }
    const family = readFamily(body.addressType)
    const warnings: string[] = []
    const trigger = Date.parse(asString(annotations?.[triggerTimeAnnotation]) ?? '')
    const weight = readWeight(annotations, warnings)
    const value: EndpointSliceObject = {
      // Every field by name: V8 gives each object made with a spread its own hidden class.
      namespace: identity.namespace,
      name: identity.name,
      service,
      family,
      ports: readPorts(body, warnings),
      endpoints: readEndpoints({ body, family, weight, rules }, warnings),
      triggerTime: Number.isNaN(trigger) ? undefined : trigger,
    }
    return { outcome: 'accepted', value, warnings }
  } catch (error) {
    if (!(error instanceof MalformedObject)) throw error
    return { outcome: 'malformed', identity: identityOf(raw), reason: error.message }
  }
}

/** The weight of all endpoints of a slice. The API has no annotations of single endpoints. */
function readWeight(annotations: Json | undefined, warnings: string[]): number {
  const text = asString(annotations?.[`${optionPrefix}${sliceWeight.name}`])
  const options = text === undefined ? {} : { [sliceWeight.name]: text }
  const problem = annotationProblem(options, sliceWeight)
  if (problem !== undefined) warnings.push(problem)
  return readAnnotation(options, sliceWeight) ?? 1
}

function readFamily(value: unknown): IpFamily {
  if (value === 'IPv4' || value === 'IPv6') return value
  throw new MalformedObject(`addressType ${show(value)} is not IPv4, IPv6 or FQDN`)
}

/** E03: a port without a usable name and number is left out. An absent name means ''. */
function readPorts(body: Json, warnings: string[]): readonly SlicePortObject[] {
  const found: SlicePortObject[] = []
  for (const [index, item] of (asArray(body.ports) ?? []).entries()) {
    const port = asObject(item)
    const name = port?.name ?? ''
    const number = asInteger(port?.port, 1, 65_535)
    const protocol = protocols.find((each) => each === (port?.protocol ?? 'TCP'))
    if (number === undefined || typeof name !== 'string' || !protocol) {
      warnings.push(`ports[${index}]: ${show(item)} has no usable name, number and protocol`)
    } else found.push({ name, protocol, port: number })
  }
  return found
}

interface EndpointsInput {
  readonly body: Json
  readonly family: IpFamily
  readonly weight: number
  readonly rules: EndpointRules
}

function readEndpoints(
  { body, family, weight, rules }: EndpointsInput,
  warnings: string[],
): readonly SliceEndpointObject[] {
  const found: SliceEndpointObject[] = []
  for (const [index, item] of (asArray(body.endpoints) ?? []).entries()) {
    const endpoint = asObject(item)
    // E04: only the first address counts. The API reserves the others, and nothing uses them.
    const text = strings(endpoint?.addresses)[0]
    const ip = text === undefined ? undefined : parseObjectIp(text)
    if (!endpoint || ip?.family !== family) {
      warnings.push(`endpoints[${index}]: ${show(text ?? item)} is not an ${family} address`)
      continue
    }
    const special = specialKind(ip)
    if (special && !(special === 'loopback' && rules.allowsLoopback)) {
      // The API server refuses them, too. Clients would reach what only this node may reach.
      warnings.push(`endpoints[${index}]: ${ip.text} is ${special}, which no endpoint may be`)
      continue
    }
    const conditions = asObject(endpoint.conditions)
    const hints = asObject(endpoint.hints)
    const ready = asBoolean(conditions?.ready) ?? true
    const target = asObject(endpoint.targetRef)
    const pod = target?.kind === 'Pod' ? asString(target.name) : undefined
    found.push({
      ip: ip.text,
      ready,
      serving: asBoolean(conditions?.serving) ?? true,
      terminating: asBoolean(conditions?.terminating) ?? false,
      nodeName: asString(endpoint.nodeName),
      zoneHints: readHints(hints?.forZones),
      nodeHints: readHints(hints?.forNodes),
      weight,
      ...(pod === undefined ? {} : { podName: pod }),
    })
  }
  return found
}

function specialKind(ip: Ip): string | undefined {
  if (isLoopback(ip)) return 'loopback'
  if (isUnspecified(ip)) return 'unspecified'
  if (isLinkLocal(ip)) return 'link-local'
  return isMulticast(ip) || ip.text === '255.255.255.255' ? 'multicast' : undefined
}

function readHints(value: unknown): readonly string[] | undefined {
  const names = (asArray(value) ?? [])
    .map((item) => asString(asObject(item)?.name))
    .filter((name) => name !== undefined)
  return names.length > 0 ? names : undefined
}
