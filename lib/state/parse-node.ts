import { asArray, asObject, asString, strings, type Json } from './json.js'
import { parseObjectCidr, parseObjectIp, type Ip } from './ip.js'
import { MalformedObject, identityOf, readHead } from './parse-object.js'
import type { NodeObject, Parsed, ServiceCidrObject } from './objects.js'

const zoneLabel = 'topology.kubernetes.io/zone'
const deletionTaint = 'ToBeDeletedByClusterAutoscaler'

export function parseNode(raw: unknown): Parsed<NodeObject> {
  return parsed(raw, (body, metadata, name) => {
    const spec = asObject(body.spec)
    const podCidrs = strings(spec?.podCIDRs)
    const single = strings([spec?.podCIDR])
    return {
      name,
      ips: readNodeIps(body),
      podCidrs: canonicalCidrs(podCidrs.length > 0 ? podCidrs : single),
      zone: asString(asObject(metadata.labels)?.[zoneLabel]),
      isBeingDeleted: metadata.deletionTimestamp !== undefined,
      isTaintedForDeletion: (asArray(spec?.taints) ?? []).some(
        (taint) => asObject(taint)?.key === deletionTaint,
      ),
    }
  })
}

/** The object that `parseNode` reads like this. */
export function writeNode({ name, ips, podCidrs, zone }: NodeObject) {
  return {
    metadata: { name, labels: { [zoneLabel]: zone } },
    spec: { podCIDRs: podCidrs },
    status: { addresses: ips.map((address) => ({ type: 'InternalIP', address })) },
  }
}

export function parseServiceCidr(raw: unknown): Parsed<ServiceCidrObject> {
  return parsed(raw, (body, _metadata, name) => ({
    name,
    cidrs: canonicalCidrs(strings(asObject(body.spec)?.cidrs)),
  }))
}

function parsed<T>(raw: unknown, read: (body: Json, metadata: Json, name: string) => T): Parsed<T> {
  try {
    const { identity, metadata, body } = readHead(raw, false)
    return { outcome: 'accepted', value: read(body, metadata, identity.name), warnings: [] }
  } catch (error) {
    if (!(error instanceof MalformedObject)) throw error
    return { outcome: 'malformed', identity: identityOf(raw), reason: error.message }
  }
}

/** L05: InternalIPs before ExternalIPs, and at most one address a family. */
function readNodeIps(body: Json): readonly string[] {
  const addresses = asArray(asObject(body.status)?.addresses) ?? []
  const found: Ip[] = []
  for (const type of ['InternalIP', 'ExternalIP']) {
    for (const item of addresses) {
      const entry = asObject(item)
      if (entry?.type !== type) continue
      const ip = parseObjectIp(asString(entry.address) ?? '')
      if (ip && !found.some((other) => other.family === ip.family)) found.push(ip)
    }
  }
  return found.map((ip) => ip.text)
}

function canonicalCidrs(texts: readonly string[]): readonly string[] {
  return texts.map((text) => parseObjectCidr(text)?.text).filter((text) => text !== undefined)
}
