import type { AnsweredListener } from '../world/agent.js'
import type { FlowRequest, FlowResult } from '../world/agent-protocol.js'
import type { Gauge } from './node-gauge.js'
import type { Place } from '../world/topology.js'
import type { ClusterLayout, PodRoom } from './cluster-layout.js'
import type { RunningProxy } from './proxy-process.js'
import type { ApiObjects } from '../apiserver/objects.js'
import type { ModeName } from '../../config/config.js'

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
  flow(place: Place, request: FlowRequest): Promise<readonly FlowResult[]>
  /** Starts servers at the addresses of the room. They answer with the name and report requests. */
  serve(room: PodRoom, server: PodServer, answered: AnsweredListener): void | Promise<void>
  /** Ends the server of this name there. */
  stopServing(room: PodRoom, name: string): void | Promise<void>
  /** Drops all packets to the room, or lets them in again; absent where that is impossible. */
  goDark?(room: PodRoom, isDark: boolean): void | Promise<void>
  /** Connects the node to the API server. Returns the URL on the node. */
  openApi(url: URL): Promise<string>
  /** Starts the daemon on the node. */
  startProxy(args: readonly string[], onLine?: (line: string) => void): RunningProxy
  /** Removes all of it. */
  close(): Promise<void>
}

/** Builds a test bed for a cluster of this name. The folder is empty, and nobody else uses it. */
export type BuildTestBed = (name: string, folder: string) => Promise<TestBed>

export interface ModeOptions {
  /** Of ipvs mode. */
  readonly scheduler?: string
  /** Gets every line of the daemon's log, which is then JSON with details. */
  readonly onLine?: (line: string) => void
}

/** What the page shows and controls: a cluster of real packets, or one that is simulated. */
export interface LiveCluster {
  readonly api: ApiObjects
  readonly testBed: Pick<TestBed, 'layout' | 'gauge' | 'flow'>
  readonly pods: {
    roomOf(pod: string): PodRoom | undefined
    /** Whether some pod answers there now. */
    serves(ip: string, port: number): boolean
  }
  /** For kubectl on this machine; empty where there is none. */
  readonly kubeconfig: string
  /** Runs the daemon in this mode from now on; a running one ends first. */
  useMode(mode: ModeName, options: ModeOptions): Promise<unknown>
}
