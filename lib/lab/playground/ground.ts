import type { FlowRequest, FlowResult } from '../world/agent-protocol.js'
import type { NodeGauge } from './node-gauge.js'
import type { Place } from '../world/topology.js'
import type { RunningProxy } from './proxy-process.js'
import type { Site } from './site.js'

/** What a scene stands on: places that serve and send, and a node for the daemon. */
export interface Ground {
  readonly site: Site
  /** Reads numbers on the node. */
  readonly gauge: NodeGauge
  /** Conversations from a place. */
  flow(place: Place, request: FlowRequest): Promise<readonly FlowResult[]>
  /** From now on the place answers at its addresses, by this name. */
  serve(place: Place, name: string): Promise<void>
  stopServing(place: Place): Promise<void>
  /** Leads from the node to the API server; returns its URL there. */
  openApi(url: URL): Promise<string>
  /** Starts the daemon on the node. */
  startProxy(args: readonly string[], onLine?: (line: string) => void): RunningProxy
  /** Removes all of it. */
  close(): Promise<void>
}

/** Builds ground for a scene of this name, in an empty folder of its own. */
export type LayGround = (name: string, folder: string) => Promise<Ground>
