import { hostPort } from '../../../state/ip.js'
import { listAt, numberAt, textAt, textMapAt, textsAt, type Json } from '../json.js'
import type { KubeObject } from '../object.js'
import { ageColumn, column, nameColumn, pairs, text, wide, type KindColumns } from './column.js'

export const serviceColumns: KindColumns = {
  Service: [
    nameColumn,
    text('Type', 'spec', 'type'),
    column('Cluster-IP', (object) => textAt(object, 'spec', 'clusterIP') || '<none>'),
    column('External-IP', externalIps),
    column('Port(s)', servicePorts),
    ageColumn,
    wide('Selector', (object) => pairs(textMapAt(object, 'spec', 'selector'))),
  ],
  EndpointSlice: [
    nameColumn,
    text('AddressType', 'addressType'),
    column('Ports', (object) =>
      few(
        listAt(object, 'ports').map((port) => String(numberAt(port, 'port') ?? '*')),
        '<unset>',
      ),
    ),
    column('Endpoints', (object) =>
      few(
        listAt(object, 'endpoints').flatMap((endpoint) => textsAt(endpoint, 'addresses')),
        '<unset>',
      ),
    ),
    ageColumn,
  ],
  Endpoints: [
    nameColumn,
    column('Endpoints', (object) =>
      few(listAt(object, 'subsets').flatMap(subsetEndpoints), '<none>'),
    ),
    ageColumn,
  ],
  ServiceCIDR: [
    nameColumn,
    column('CIDRs', (object) => textsAt(object, 'spec', 'cidrs').join(',')),
    ageColumn,
  ],
}

/** The first three, and how many more there are. */
function few(entries: readonly string[], none: string): string {
  if (entries.length === 0) return none
  const shown = entries.slice(0, 3).join(',')
  return entries.length > 3 ? `${shown} + ${entries.length - 3} more...` : shown
}

function subsetEndpoints(subset: Json): readonly string[] {
  const ports = listAt(subset, 'ports').map((port) => numberAt(port, 'port') ?? 0)
  return listAt(subset, 'addresses').flatMap((address) => {
    const ip = textAt(address, 'ip')
    if (ports.length === 0) return [ip]
    return ports.map((port) => hostPort(ip, port))
  })
}

function externalIps(object: KubeObject): string {
  const type = textAt(object, 'spec', 'type')
  if (type === 'ExternalName') return textAt(object, 'spec', 'externalName')
  const ingress = listAt(object, 'status', 'loadBalancer', 'ingress').map(
    (entry) => textAt(entry, 'ip') || textAt(entry, 'hostname'),
  )
  const listed = textsAt(object, 'spec', 'externalIPs')
  const all = type === 'LoadBalancer' ? [...ingress, ...listed] : listed
  if (all.length > 0) return all.join(',')
  return type === 'LoadBalancer' ? '<pending>' : '<none>'
}

function servicePorts(object: KubeObject): string {
  const ports = listAt(object, 'spec', 'ports').map((port) => {
    const nodePort = numberAt(port, 'nodePort') ?? 0
    const exposed = nodePort === 0 ? '' : `:${nodePort}`
    return `${numberAt(port, 'port') ?? 0}${exposed}/${textAt(port, 'protocol')}`
  })
  return ports.length === 0 ? '<none>' : ports.join(',')
}
