import { hostPort } from '../../state/ip.js'
import { idleEndpoints, type Balancer } from './idle-endpoints.js'
import type { DesiredService, Endpoint } from '../../state/desired-state.js'
import type { EndpointSliceObject, SliceEndpointObject } from '../../state/objects.js'
import type { IpFamily } from '../../state/ip.js'

/** One endpoint of a service port, and why it is used here or not. */
export interface EndpointReason {
  readonly key: string
  readonly isUsed: boolean
  readonly reason: string
}

interface EndpointsSeen extends Balancer {
  readonly family: IpFamily
  readonly slices: readonly EndpointSliceObject[]
  readonly nodeName: string
  readonly zone: string | undefined
  /** The mode is a proxy, and the endpoint is one of its own addresses. */
  readonly leadsBack: (endpoint: { readonly ip: string; readonly port: number }) => boolean
}

/** Every endpoint of a Service, and why this node uses it or not (E01-E17). */
export function endpointReasons(
  service: DesiredService,
  { family, slices, nodeName, zone, leadsBack, ...balancer }: EndpointsSeen,
): readonly EndpointReason[] {
  const idle = idleEndpoints(service, balancer)
  const reasons = new Map<string, EndpointReason>()
  for (const slice of slices) {
    const port = slice.ports.find(
      ({ name, protocol }) => name === service.name.port && protocol === service.protocol,
    )
    for (const endpoint of slice.endpoints) {
      const key = port ? hostPort(endpoint.ip, port.port) : endpoint.ip
      const left =
        slice.family !== family
          ? `is ${slice.family}, and this way is ${family}`
          : !port
            ? `its EndpointSlice ${slice.name} has no port of this name and protocol`
            : leadsBack({ ip: endpoint.ip, port: port.port })
              ? 'an address of a Service: a connection to it would lead back to this proxy'
              : undefined
      const known = reasons.get(key)
      if (known?.isUsed === true) continue
      reasons.set(
        key,
        reasonOf(service, { endpoint, key, left, nodeName, zone, idle: idle.get(key) }),
      )
    }
  }
  return [...reasons.values()].sort((a, b) =>
    a.isUsed === b.isUsed ? (a.key < b.key ? -1 : 1) : a.isUsed ? -1 : 1,
  )
}

interface Candidate {
  readonly endpoint: SliceEndpointObject
  readonly key: string
  readonly left: string | undefined
  /** Why it gets nothing although it could be used. */
  readonly idle: string | undefined
  readonly nodeName: string
  readonly zone: string | undefined
}

function reasonOf(service: DesiredService, candidate: Candidate): EndpointReason {
  const { endpoint, key, left, nodeName, idle } = candidate
  const out = (reason: string) => ({ key, isUsed: false, reason })
  if (left !== undefined) return out(left)
  const loop = service.unusableEndpoints.find((each) => each.key === key)
  if (loop) {
    return out(`the ClusterIP of Service ${loop.owner}: no connection is sent on a second time`)
  }
  const failure = service.health?.failing.find((each) => each.key === key)?.reason
  const has = (list: DesiredService['reachableEndpoints']) => list.some((each) => each.key === key)
  // Another EndpointSlice may have a record of it that counts more than this one.
  const used = service.reachableEndpoints.find((each) => each.key === key)
  const { ready, serving, terminating } = endpoint
  const isHere = used?.isLocal ?? endpoint.nodeName === nodeName
  const place = isHere
    ? 'on this node'
    : endpoint.nodeName === undefined
      ? 'on an unknown node'
      : `on ${endpoint.nodeName}`
  if (used) {
    const others = has(service.clusterEndpoints) ? 'endpoint' : 'endpoint of this node'
    const state = used.ready ? 'ready' : `terminating, but no other ${others} is ready`
    const health =
      failure === undefined ? [] : [`fails its health check (${failure}), but no other is left`]
    const reason = [state, place, ...health, ...limits(service, used)].join(', ')
    return idle === undefined ? { key, isUsed: true, reason } : out(`${idle}; ${reason}`)
  }
  if (terminating && !serving) return out(`terminating, and no longer serving, ${place}`)
  if (!ready && !terminating) return out(`not ready, ${place}`)
  const onlyLocal =
    service.clusterEndpoints.length === 0 &&
    (service.internalPolicyLocal || service.externalPolicyLocal)
  if (onlyLocal && !isHere) return out(`not local: ${place}, and the traffic policy is Local`)
  if (!ready) return out(`terminating, while others are ready, ${place}`)
  if (failure !== undefined) return out(`fails its health check (${failure}), ${place}`)
  return out(hintReason(candidate, place))
}

/** The traffic that a used endpoint does not get. */
function limits(service: DesiredService, { key, ready }: Endpoint): readonly string[] {
  const { clusterEndpoints, localEndpoints, internalPolicyLocal, externalPolicyLocal } = service
  const within = (list: typeof clusterEndpoints) => list.some((each) => each.key === key)
  const sides = [
    ...(internalPolicyLocal ? ['from inside'] : []),
    ...(externalPolicyLocal && service.externallyAccessible ? ['from outside'] : []),
  ]
  if (sides.length > 0 && !within(localEndpoints)) {
    // External addresses are open to clients of this node whatever the policy says (S18).
    if (sides.length === 2) return ['only for clients on this node that ask an external address']
    return [`not for traffic ${sides.join(' or ')} (policy Local)`]
  }
  return clusterEndpoints.length > 0 && !within(clusterEndpoints)
    ? [`only for policy Local${ready ? ', because of its topology hints' : ''}`]
    : []
}

function hintReason({ endpoint, nodeName, zone }: Candidate, place: string): string {
  const { nodeHints, zoneHints } = endpoint
  if (nodeHints && !nodeHints.includes(nodeName)) {
    return `hinted for node ${nodeHints.join(', ')}, and this is ${nodeName}, ${place}`
  }
  if (zoneHints && zone !== undefined && !zoneHints.includes(zone)) {
    return `hinted for zone ${zoneHints.join(', ')}, and this node is in ${zone}, ${place}`
  }
  return `ready ${place}, but policy or topology hints leave it out here`
}
