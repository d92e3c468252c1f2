import type { AnsweredListener } from '../world/agent.js'
import type { FlowRequest, FlowResult } from '../world/agent-protocol.js'
import type { Gauge } from './node-gauge.js'
import { podsInPlace, podPlaces, places, type Place } from '../world/topology.js'
import type { RunningProxy } from './proxy-process.js'
import type { Sender } from '../../page/view.js'

/** The addresses of a cluster's places, and from which of them requests can be sent. Plain data. */
export interface ClusterLayout {
  /** The addresses of each place, the main one first. */
  readonly addresses: Readonly<Record<Place, readonly string[]>>
  /** The rooms for pods of each node, in the order in which they are used. */
  readonly rooms: Readonly<Record<string, readonly PodRoom[]>>
  /** The range of all pods, IPv4. */
  readonly clusterCidr: string
  readonly podCidrs: Readonly<Record<'node' | 'node-2', readonly string[]>>
  readonly serviceCidrs: readonly string[]
  /** The range of node ports. */
  readonly nodePorts: { readonly from: number; readonly to: number }
  /** Addresses of load balancers, without the last number. */
  readonly loadBalancers: string
  /** Where the API server listens. */
  readonly api: { readonly host: string; readonly port: number }
  /** The ports of the Services of the playground. */
  readonly ports: { readonly web: number; readonly echo: number; readonly kubernetes: number }
  /** Configuration of the daemon besides its mode, by path. */
  readonly config: Readonly<Record<string, unknown>>
  readonly senders: readonly Sender[]
  /** The interface of the node through which the packets of each sender come in. */
  readonly interfaces: Readonly<Record<Sender, string | undefined>>
  /** What cannot be shown here, and why; a sentence each. */
  readonly limits: readonly string[]
  /** What was built, as the tour prints it in a terminal. */
  readonly built: string
}

/** Room for one pod: its place, and its addresses there, the main one first. */
export interface PodRoom {
  readonly place: Place
  readonly addresses: readonly string[]
}

/** What runs in a pod. */
export interface PodServer {
  /** The name that its answers have. */
  readonly name: string
  readonly ports: readonly number[]
}

/** What the playground's cluster runs on: places that serve and send, and a node for the daemon. */
export interface TestBed {
  readonly layout: ClusterLayout
  /** Reads numbers on the node. */
  readonly gauge: Gauge
  /** Sends requests from a place. */
  flow(place: Place, request: FlowRequest): Promise<readonly FlowResult[]>
  /** Starts servers at the addresses of the room. They answer with the name and report requests. */
  serve(room: PodRoom, server: PodServer, answered: AnsweredListener): Promise<void>
  /** Ends the server of this name there. */
  stopServing(room: PodRoom, name: string): Promise<void>
  /** Drops all packets to the room, or lets them in again; absent where that is impossible. */
  goDark?(room: PodRoom, isDark: boolean): Promise<void>
  /** Connects the node to the API server. Returns the URL on the node. */
  openApi(url: URL): Promise<string>
  /** Starts the daemon on the node. */
  startProxy(args: readonly string[], onLine?: (line: string) => void): RunningProxy
  /** Removes all of it. */
  close(): Promise<void>
}

/** Builds a test bed for a cluster of this name. The folder is empty, and nobody else uses it. */
export type BuildTestBed = (name: string, folder: string) => Promise<TestBed>

export function byPlace(
  list: (place: Place) => readonly string[],
): Readonly<Record<Place, readonly string[]>> {
  const entries = places.map((place): [Place, readonly string[]] => [place, list(place)])
  return Object.fromEntries(entries) as Record<Place, readonly string[]>
}

/** Rooms of both nodes. Every place of a node gets one pod before any gets a second. */
export function roomsWith(
  addressesOf: (place: Place, index: number) => readonly string[],
): ClusterLayout['rooms'] {
  const indexes = Array.from({ length: podsInPlace }, (_, index) => index)
  const rooms = Object.entries(podPlaces).map(([node, own]) => [
    node,
    indexes.flatMap((index) =>
      own.map((place): PodRoom => ({ place, addresses: addressesOf(place, index) })),
    ),
  ])
  return Object.fromEntries(rooms) as ClusterLayout['rooms']
}

/** The main address of a place, IPv4. */
export function addressIn(layout: ClusterLayout, place: Place): string {
  return layout.addresses[place][0] ?? ''
}
