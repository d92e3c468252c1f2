import { configWith } from '../../config/load.js'
import { explainPacket } from '../../inspect/explain/explain.js'
import type { Way } from '../../inspect/explain/packet.js'
import { isEqual } from '../../state/json.js'
import { planners } from '../../modes/planners.js'
import type { Config, ModeName } from '../../config/config.js'
import { PersistentMap } from '../../state/persistent-map.js'
import { trackerSettings } from '../../config/tracker-settings.js'
import { collect } from '../../sources/collected-states.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { EndpointFailure } from '../../state/endpoint-health.js'
import type { PlanLine } from '../../modes/mode.js'
import type { ObjectKind } from '../../sources/source.js'
import { noPath, pathView } from '../../page/path-view.js'
import { ownLines } from '../../page/rule-lines.js'
import type { PathView, PodView, ServiceView, Sender } from '../../page/view.js'
import type { Registry } from '../apiserver/registry.js'
import type { ClusterLayout, PodRoom } from './cluster-layout.js'

const collections: readonly (readonly [ObjectKind, collection: string])[] = [
  ['Service', 'services'],
  ['EndpointSlice', 'endpointslices.discovery.k8s.io'],
  ['Node', 'nodes'],
]

/** The objects of the API server as the daemon on node-1 understands them, IPv4 only. */
export function stateOf(
  registry: Registry,
  mode: ModeName,
  layout: ClusterLayout,
  failing: readonly EndpointFailure[] = [],
): DesiredState | undefined {
  const node = { nodeName: 'node-1', families: ['IPv4'] } as const
  const settings = trackerSettings(configWith(layout.config), mode, node)
  const addresses = [...new Set(['127.0.0.1', ...layout.addresses.node])]
  const { sink, taken } = collect(settings, addresses, failing)
  for (const [kind, collection] of collections) {
    for (const object of registry.store.list(collection)) sink.upsert(kind, object)
  }
  return taken().states[0]
}

/** The configuration of a mode. Only ipvs reads the scheduler. */
export function configOf(layout: ClusterLayout, scheduler: string): Config {
  return configWith({ ...layout.config, 'ipvs.scheduler': scheduler })
}

/** The state with only the ports of one Service, by `namespace/name`. */
export function onlyService(state: DesiredState, service: string): DesiredState {
  const own = [...state.services].filter(
    ([, { name }]) => `${name.namespace}/${name.name}` === service,
  )
  return { ...state, services: PersistentMap.from(own) }
}

/** Whether two states have the same service ports. */
export function isSameServices(
  one: DesiredState | undefined,
  other: DesiredState | undefined,
): boolean {
  const values = (state: DesiredState | undefined) =>
    [...(state?.services.values() ?? [])].sort((a, b) => (a.key < b.key ? -1 : 1))
  return isEqual(values(one), values(other))
}

/**
 * Marks pods that only one of the two states has, because the change is not in the kernel yet. Also
 * marks pods that are ready but fail their health check.
 */
export function markedPods(
  pods: readonly PodView[],
  has: DesiredState | undefined,
  should: DesiredState | undefined,
): readonly PodView[] {
  const [now, then] = [has, should].map(
    (state) =>
      new Set(
        [...(state?.services.values() ?? [])].flatMap(({ servingEndpoints }) =>
          servingEndpoints.map(({ ip }) => ip),
        ),
      ),
  )
  const failing = failingIn(should)
  return pods.map((pod): PodView => ({
    ...pod,
    ...(pod.state === 'ready' && failing.has(pod.ip) ? { state: 'failing' } : {}),
    ...(now?.has(pod.ip) === then?.has(pod.ip) ? {} : { isPending: true }),
  }))
}

/** Addresses of the endpoints that fail their health check. */
function failingIn(state: DesiredState | undefined): ReadonlySet<string> {
  const health = [...(state?.services.values() ?? [])].flatMap((each) => each.health ?? [])
  const keys = new Set(health.flatMap(({ failing }) => failing.map(({ key }) => key)))
  const endpoints = health.flatMap((each) => each.endpoints)
  return new Set(endpoints.filter(({ key }) => keys.has(key)).map(({ ip }) => ip))
}

/** The lines that a mode needs for the Services of a state, beyond those it needs without any. */
export function rulesOf(
  state: DesiredState,
  mode: ModeName,
  { layout, scheduler }: { readonly layout: ClusterLayout; readonly scheduler: string },
): readonly PlanLine[] {
  if (state.services.size === 0) return []
  const planner = planners[mode](configOf(layout, scheduler))
  return ownLines(planner, planner.plan(state), [...state.services.keys()])
}

export interface Connection {
  readonly layout: ClusterLayout
  /** The scheduler of ipvs mode. A way and the shown rules are linked by text, which names it. */
  readonly scheduler: string
  readonly sender: Sender
  /** Where the sender is; undefined when no pod can send. */
  readonly room: Pick<PodRoom, 'addresses'> | undefined
  readonly protocol: ServiceView['protocol']
  readonly destination: string
  readonly port: number
  /** Name of the pod at an address. */
  readonly podAt: (ip: string) => string | undefined
}

/** The path of a connection of the cluster, drawn from the rules that the mode makes. */
export function pathOf(state: DesiredState, mode: ModeName, connection: Connection): PathView {
  if (connection.room === undefined) return noPath('There is no pod to send from.')
  return pathView(waysOf(state, mode, connection), connection.podAt)
}

/** The ways of a connection through the rules that the mode makes. */
export function waysOf(
  state: DesiredState,
  mode: ModeName,
  { layout, scheduler, sender, room, protocol, destination, port }: Connection,
): readonly Way[] {
  return explainPacket(mode, state, configOf(layout, scheduler), {
    family: 'IPv4',
    protocol,
    source: room?.addresses[0] ?? '',
    destination,
    port,
    inInterface: layout.interfaces[sender],
    isSocketHere: sender !== 'outside',
    mark: 0,
    isDnated: false,
    isMasqueraded: false,
  })
}

/** One Service as the kernel has it, and as it should. */
interface Service {
  readonly has: DesiredState | undefined
  readonly should: DesiredState | undefined
  readonly name: string
}

/** The path of a connection through the rules that the kernel has, or why there is none. */
export function appliedPath(
  mode: ModeName,
  { has, should, name }: Service,
  connection: Connection,
): PathView {
  if (has && has.services.size > 0) return pathOf(has, mode, connection)
  const note = should?.services.size
    ? 'The kernel does not have this Service yet: it is on its way.'
    : `There is no Service ${name}.`
  return noPath(note)
}
