import { rankAt } from '../explain/question.js'
import { sumOf, type DaemonNumbers } from './daemon-numbers.js'
import type { DesiredService, DesiredState } from '../../state/desired-state.js'
import type { TrackedFlow } from '../../kernel/flow-message.js'

/** The numbers of one service port; undefined where nothing counts them. */
export interface ServiceNumbers {
  /** `namespace/name:port` */
  readonly service: string
  readonly protocol: string
  /** Connections now: open ones, or those the kernel still tracks. */
  readonly open: number
  /** Connections since counting began. */
  readonly total: number | undefined
  readonly bytesIn: number | undefined
  readonly bytesOut: number | undefined
  /** Connections that were refused, or that reached no endpoint. */
  readonly errors: number | undefined
}

/** The counters of a mode for a service port, by `DesiredService.key`. */
export type KernelCounters = Partial<Omit<DaemonNumbers, 'open'>>

/** Exact numbers of a proxy that carries the connections itself; zeros where it counted nothing. */
export function rowsOfDaemon(
  states: readonly DesiredState[],
  numbers: ReadonlyMap<string, DaemonNumbers>,
): readonly ServiceNumbers[] {
  return perService(states).map(({ portName, protocol, key }) => ({
    ...{ service: portName, protocol },
    ...sumOf(numbers.get(key)),
  }))
}

/**
 * Combines the connections that the kernel tracks with the counters of rules or virtual servers.
 */
export function rowsOfKernel(
  states: readonly DesiredState[],
  flows: readonly TrackedFlow[],
  counters: ReadonlyMap<string, KernelCounters>,
): readonly ServiceNumbers[] {
  const byFrontend = new Map(states.flatMap((state) => [...frontendOwners(state)]))
  const seen = new Map<string, DaemonNumbers>()
  for (const { protocol, destination, bytes } of flows.filter(isTranslated)) {
    const key = byFrontend.get(`${protocol} ${destination.ip} ${destination.port}`)
    if (key === undefined) continue
    const own = { open: 1, bytesIn: bytes?.toEndpoint, bytesOut: bytes?.toClient }
    seen.set(key, sumOf(seen.get(key), own))
  }
  const isCounting = flows.some(({ bytes }) => bytes !== undefined)
  return perService(states).map(({ key, portName, protocol }) => {
    const tracked = sumOf(seen.get(key))
    const { total, bytesIn, bytesOut, errors } = counters.get(key) ?? {}
    return {
      service: portName,
      protocol,
      open: tracked.open,
      total,
      bytesIn: bytesIn ?? (isCounting ? tracked.bytesIn : undefined),
      bytesOut: bytesOut ?? (isCounting ? tracked.bytesOut : undefined),
      errors,
    }
  })
}

/**
 * Adds the connections that were translated at sockets. The kernel tracks them under the address of
 * their endpoint, so nothing is counted twice.
 */
export function withSockets(
  rows: readonly ServiceNumbers[],
  numbers: ReadonlyMap<string, DaemonNumbers>,
): readonly ServiceNumbers[] {
  return rows.map((row) => ({
    ...row,
    ...sumOf(row, numbers.get(`${row.service}/${row.protocol}`)),
  }))
}

/** False where a program of the node has the address and port of a node port that is not served there. */
export function isTranslated({ destination, answeredBy }: TrackedFlow): boolean {
  return destination.ip !== answeredBy.ip || destination.port !== answeredBy.port
}

/** A Service of both families is one row. */
function perService(states: readonly DesiredState[]): readonly DesiredService[] {
  const services = new Map<string, DesiredService>()
  for (const state of states) {
    for (const service of state.services.values()) {
      if (!services.has(service.key)) services.set(service.key, service)
    }
  }
  return [...services.values()]
}

/** An address where a service port answers on this node: its own, or a node port. */
interface Frontend {
  readonly ip: string
  readonly port: number
  readonly isOwn: boolean
}

export function* frontends(service: DesiredService, { node }: DesiredState): Iterable<Frontend> {
  const { port, clusterIp, externalIps, loadBalancerIps, nodePort } = service
  for (const ip of [clusterIp, ...externalIps, ...loadBalancerIps]) yield { ip, port, isOwn: true }
  if (nodePort === 0) return
  for (const ip of node.localAddresses) yield { ip, port: nodePort, isOwn: false }
}

/** The key of the service port that gets the connections to `TCP 10.96.0.10 80`. */
function frontendOwners(state: DesiredState): ReadonlyMap<string, string> {
  const owners = new Map<string, { readonly rank: string; readonly key: string }>()
  for (const service of state.services.values()) {
    const { key, protocol } = service
    for (const { ip, port, isOwn } of frontends(service, state)) {
      const rank = rankAt(service, isOwn)
      const frontend = `${protocol} ${ip} ${port}`
      const known = owners.get(frontend)
      if (!known || rank < known.rank) owners.set(frontend, { rank, key })
    }
  }
  return new Map(Array.from(owners, ([frontend, { key }]) => [frontend, key]))
}
