import { ConfigError } from '../errors.js'
import { ManifestFolder } from '../sources/manifest-folder.js'
import { nodeAddresses } from '../sources/node-addresses.js'
import { Tracker } from '../state/tracker.js'
import { TrackerSink } from '../sources/tracker-sink.js'
import { trackerSettings } from '../config/tracker-settings.js'
import type { Config } from '../config/config.js'
import type { DesiredState } from '../state/desired-state.js'
import type { IpFamily } from '../state/ip.js'
import type { ModeName } from '../modes/mode.js'

/** A node that is pretended, and what it should serve. */
export interface ManifestStatesRequest {
  readonly mode: ModeName
  readonly manifests: string
  readonly families: readonly IpFamily[]
  readonly nodeName: string
  readonly config: Config
  /** Of the node; empty: this machine's. */
  readonly addresses: readonly string[]
}

export interface ManifestStates {
  readonly states: readonly DesiredState[]
  /** What was skipped or left out, and why. */
  readonly warnings: readonly string[]
}

/** Manifests as the state they make on that node. Throws ConfigError when there is nothing to read. */
export async function readManifestStates(request: ManifestStatesRequest): Promise<ManifestStates> {
  const { mode, families, nodeName, config, addresses } = request
  const warnings: string[] = []
  const tracker = new Tracker(trackerSettings(config, mode, { nodeName, families }))
  tracker.setLocalAddresses(addresses.length > 0 ? addresses : nodeAddresses())
  const sink = new TrackerSink(tracker, nodeName, {
    changed: () => undefined,
    nodeChanged: () => undefined,
    malformed: (kind, { namespace, name }, reason) => {
      warnings.push(`${kind} ${namespace}/${name} is skipped: ${reason}`)
    },
    warned: (kind, { namespace, name }, warning) => {
      warnings.push(`${kind} ${namespace}/${name}: ${warning}`)
    },
    failed: (message) => warnings.push(message),
  })
  await new ManifestFolder({ path: request.manifests }).load(sink)
  if (!sink.isComplete) {
    throw new ConfigError(['--manifests: nothing can be read there', ...warnings].join('\n'))
  }
  return { states: tracker.take().states, warnings }
}
