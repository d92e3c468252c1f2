import { pause } from '../../async.js'
import { ConfigError } from '../../errors.js'
import { isEqual } from '../../state/json.js'
import { hiddenPorts } from './counters.js'
import { onlyService, waysOf } from './rules-view.js'
import { countedOn } from '../../page/path-view.js'
import { endOf, type Way } from '../../inspect/explain/packet.js'
import type { DesiredState } from '../../state/desired-state.js'
import { sentTo } from './sent-to.js'
import type { LiveCluster } from './test-bed.js'
import type { FlowRequest } from '../world/agent-protocol.js'
import type { ModeName } from '../../config/config.js'
import { firstService } from './web-app.js'
import type { TrafficRequest } from './traffic.js'
import type { PodView, Sender, ServiceView, TargetView } from '../../page/view.js'
import { addressIn, type ClusterLayout, type PodRoom } from './cluster-layout.js'

interface SelectionDeps {
  readonly layout: ClusterLayout
  readonly service: () => ServiceView | undefined
  readonly pods: () => readonly PodView[]
  readonly rooms: LiveCluster['pods']
}

interface Probe {
  readonly request: FlowRequest
  /** Whether this pod is one of those that can answer. */
  mayReach(pod: string): boolean
  /**
   * Whether the counters of a request without answer are known. They are not while rules change.
   */
  isClear(): boolean
  /**
   * The counters that the request passed if this pod answered; undefined: no pod did. `endpoint`
   * says where a request without an answer was sent, if that is known.
   */
  countersTo(pod: string | undefined, endpoint?: string): readonly string[]
}

/** What runs in the cluster. */
interface Running {
  readonly mode: ModeName
  readonly scheduler: string
}

/** The state that the kernel has for sure, and the state that the objects want. */
interface States {
  readonly has: DesiredState | undefined
  readonly wanted: () => DesiredState | undefined
}

/** The counters that a connection passes on its way, the endpoint included. */
function countersOf(way: Way): readonly string[] {
  const isGiven = way.end === 'sent' && way.packet.isDnated
  return [...countedOn(way), ...(isGiven ? [endOf(way)] : [])]
}

function inAll(lists: readonly (readonly string[])[]): readonly string[] {
  const [first = [], ...others] = lists
  return first.filter((key) => others.every((each) => each.includes(key)))
}

/** The sender and the address of the shown Service that the page has selected. */
export class Selection {
  readonly #deps: SelectionDeps
  sender: Sender = 'client-pod'
  wanted: TargetView['name'] = 'ClusterIP'
  #port: number = hiddenPorts.first

  constructor(deps: SelectionDeps) {
    this.#deps = deps
  }

  get view() {
    const [service, target, targets] = [this.service(), this.target(), this.targets()]
    return { service, sender: this.sender, target, targets }
  }

  sendFrom(sender: Sender): void {
    if (!this.#deps.layout.senders.includes(sender)) {
      throw new ConfigError(`send from ${sender}: this cluster has no such sender`)
    }
    this.sender = sender
  }

  request(mode: string): TrafficRequest {
    return {
      mode,
      sender: this.sender,
      room: this.#room(),
      protocol: this.service().protocol,
      ...this.addressOf(this.target().name),
    }
  }

  /** A connection of the page's own to the Service, and the counters that it passes. */
  probe({ mode, scheduler }: Running, { has, wanted }: States): Probe {
    const { name, ...service } = this.service()
    // No way of a TCP packet leads to an SCTP Service, so such a Service is not asked.
    const protocol = service.protocol === 'UDP' ? 'UDP' : 'TCP'
    const { layout, pods, rooms } = this.#deps
    const { destination, port } = this.addressOf('ClusterIP')
    const { first, last } = hiddenPorts
    this.#port = this.#port < last ? this.#port + 1 : first
    // The port marks them in the table of connections. On the network of this machine others use
    // it.
    const isOwnNetwork = layout.config['userspace.portals'] !== 'addresses'
    const from = isOwnNetwork ? { fromPort: this.#port } : {}
    // Userspace mode tries another endpoint meanwhile, and only an answer tells which.
    const timeoutMs = mode === 'userspace' ? 1500 : 200
    const room = { addresses: layout.addresses['client-pod'] }
    const at = { sender: 'client-pod', room, protocol, destination, port } as const
    const podAt = (ip: string) => pods().find((each) => each.ip === ip)?.name
    const connection = { layout, scheduler, ...at, podAt }
    const waysIn = (state: DesiredState | undefined) =>
      state ? waysOf(onlyService(state, name), mode, connection) : []
    const answering = ({ end, packet }: Way) =>
      end === 'sent' && rooms.serves(packet.destination, packet.port)
        ? podAt(packet.destination)
        : undefined
    const silent = (ways: readonly Way[]) => ways.filter((way) => answering(way) === undefined)
    return {
      request: { protocol, host: destination, port, timeoutMs, isProbe: true, ...from },
      mayReach: (pod) => waysIn(wanted()).some((way) => answering(way) === pod),
      isClear: () => {
        const [before, after] = [has, wanted()].map((state) =>
          silent(waysIn(state)).map(countersOf),
        )
        return !before?.length || !after?.length || isEqual(before, after)
      },
      countersTo: (pod, endpoint) => {
        const before = waysIn(has)
        const fitting = (ways: readonly Way[]) => {
          // A pod that did not answer may do so by now, so where it was sent comes first.
          const taken = ways.filter((way) => endOf(way) === endpoint)
          return taken.length > 0 ? taken : ways.filter((way) => answering(way) === pod)
        }
        const known = fitting(before)
        // Without such a way, the kernel had newer rules before the log said so.
        const ways = known.length > 0 ? known : fitting(waysIn(wanted()))
        // Nobody knows which of several ways it took, so only counters on all of them are sure.
        return inAll((ways.length > 0 ? ways : before).map(countersOf))
      },
    }
  }

  /** The Service that is shown, or an empty one when it was deleted. */
  service(): ServiceView {
    return this.#deps.service() ?? noService
  }

  /** The selected address, or the ClusterIP if the Service has no such address. */
  target(): TargetView {
    const wanted = this.targets().find(({ name }) => name === this.wanted)
    return wanted ?? this.#targetOf('ClusterIP')
  }

  targets(): readonly TargetView[] {
    const { nodePort, loadBalancerIp } = this.service()
    const names: readonly TargetView['name'][] = [
      'ClusterIP',
      ...(nodePort === 0 ? [] : (['NodePort'] as const)),
      ...(loadBalancerIp === '' ? [] : (['LoadBalancer'] as const)),
    ]
    return names.map((name) => this.#targetOf(name))
  }

  /** Undefined when the Service was deleted. */
  knownAddress(target: TargetView['name']) {
    return this.#deps.service() ? this.addressOf(target) : undefined
  }

  addressOf(target: TargetView['name']) {
    const { clusterIp, port, nodePort, loadBalancerIp } = this.service()
    switch (target) {
      case 'ClusterIP':
        return { destination: clusterIp, port }
      case 'NodePort':
        return { destination: addressIn(this.#deps.layout, 'node'), port: nodePort }
      case 'LoadBalancer':
        return { destination: loadBalancerIp, port }
    }
  }

  #targetOf(name: TargetView['name']): TargetView {
    const { destination, port } = this.addressOf(name)
    return { name, address: `${destination}:${port}` }
  }

  #room(): PodRoom | undefined {
    const { layout, pods, rooms } = this.#deps
    const { sender } = this
    if (sender !== 'backend') return { place: sender, addresses: layout.addresses[sender] }
    const own = pods().filter(({ state, node }) => state === 'ready' && node === 'node-1')
    return own.map(({ name }) => rooms.roomOf(name)).find((room) => room !== undefined)
  }
}

const noService: ServiceView = {
  name: firstService,
  type: 'ClusterIP',
  protocol: 'TCP',
  clusterIp: '',
  port: 0,
  nodePort: 0,
  loadBalancerIp: '',
  affinity: false,
  internalPolicy: 'Cluster',
  externalPolicy: 'Cluster',
  sourceRanges: [],
}

interface ReachDeps {
  readonly testBed: LiveCluster['testBed']
  readonly mode: string
  readonly probe: () => Probe
  /** Told the counters of each connection. */
  readonly passed: (keys: readonly string[]) => void
  readonly signal: AbortSignal
}

const reachMs = 3000
/** Each connection reaches a pod by chance. A busy machine gets more time for so many of them. */
const [leastTries, longestReachMs] = [60, 300_000]
const waitMs = 5

/** Connects until this pod answers, for the timeline. The page does not show these connections. */
export async function reachPod(
  pod: string,
  { testBed, mode, probe, passed, signal }: ReachDeps,
): Promise<boolean> {
  const began = Date.now()
  const mayGoOn = (tries: number) =>
    Date.now() - began < (tries < leastTries ? longestReachMs : reachMs) && !signal.aborted
  for (let tries = 0; mayGoOn(tries);) {
    const one = probe()
    if (!one.mayReach(pod)) return false
    if (!one.isClear()) {
      await pause(waitMs, signal)
      continue
    }
    tries++
    const [result] = await testBed.flow('client-pod', one.request)
    const addresses = testBed.layout.addresses['client-pod']
    const asked = { mode, addresses, request: one.request }
    const [endpoints] = await sentTo(testBed, asked, result ? [result] : [])
    passed(one.countersTo(result?.backend, endpoints?.at(-1)))
    if (result?.backend === pod) return true
  }
  return false
}
