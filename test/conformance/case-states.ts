import { substitutes } from '../../lib/config/tracker-settings.js'
import { configWith } from '../../lib/config/load.js'
import { isProxyMode, type Config, type ModeName } from '../../lib/config/config.js'
import { TrackerSink } from '../../lib/sources/tracker-sink.js'
import type { DesiredState } from '../../lib/state/desired-state.js'
import { Tracker } from '../../lib/state/tracker.js'
import { addresses } from '../../lib/lab/world/topology.js'
import { CaseServices } from './case-services.js'
import { configValues, type Case, type CaseSettings, type ServiceRange, type Step } from './case.js'
import { nodeManifest, serviceCidrManifest } from './cluster-objects.js'
import { idOf, serviceManifest, sliceManifests, type Manifest } from './objects.js'

/** The state that a mode gets at one step of a case. */
export interface CaseStep {
  readonly step: Step
  readonly states: readonly DesiredState[]
  readonly services: CaseServices
}

/** The states of a case, step by step, without any network. `nextSerial` numbers Services. */
export function* caseStates(
  each: Case,
  mode: ModeName,
  nextSerial: () => number,
): Generator<CaseStep> {
  const services = new CaseServices(nextSerial)
  const objects = new CaseObjects(each.settings, mode)
  let zone: string | null | undefined
  let serviceCidrs: readonly ServiceRange[] = ['first']
  for (const step of each.steps) {
    if (step.zone !== undefined) zone = step.zone
    serviceCidrs = step.serviceCidrs ?? serviceCidrs
    services.take(step)
    const states = objects.apply([
      nodeManifest(zone ?? undefined),
      ...serviceCidrs.map(serviceCidrManifest),
      ...services
        .present()
        .flatMap((service) => [serviceManifest(service), ...sliceManifests(service)]),
    ])
    yield { step, states, services }
  }
}

/** The configuration of a case. */
export function caseConfig(settings: CaseSettings, keepsSource: boolean): Config {
  return configWith({
    'userspace.sourceAddress': keepsSource ? 'keep' : 'hide',
    ...configValues(settings),
  })
}

/** The objects of a case as the state they make. */
export class CaseObjects {
  readonly #tracker: Tracker
  readonly #sink: TrackerSink
  #present = new Map<string, Manifest>()

  constructor(settings: CaseSettings, mode: ModeName) {
    this.#tracker = new Tracker({
      families: ['IPv4', 'IPv6'],
      allowsExternalIps: settings.allowsExternalIps,
      nodeName: 'node',
      bindAddress: '0.0.0.0',
      nodePortAddresses: settings.nodePortAddresses,
      detectLocal: settings.detectLocal,
      translatesOnce: !isProxyMode(mode),
      substitutes: substitutes[mode],
    })
    const own = addresses.node.flatMap(({ IPv4, IPv6 }) => [IPv4, IPv6])
    this.#tracker.setLocalAddresses(['127.0.0.1', '::1', ...own])
    const ignore = () => undefined
    const listener = {
      changed: ignore,
      malformed: ignore,
      warned: ignore,
      nodeChanged: ignore,
      failed: ignore,
    }
    this.#sink = new TrackerSink(this.#tracker, 'node', listener)
  }

  apply(manifests: readonly Manifest[]): readonly DesiredState[] {
    const next = new Map(manifests.map((manifest) => [idOf(manifest), manifest]))
    for (const [id, manifest] of this.#present) {
      if (!next.has(id)) this.#sink.remove(kindOf(manifest), 'cases', id.split('/')[1] ?? '')
    }
    for (const manifest of next.values()) this.#sink.upsert(kindOf(manifest), manifest)
    this.#present = next
    return this.#tracker.take().states
  }
}

function kindOf({ kind }: Manifest): 'Service' | 'EndpointSlice' | 'Node' | 'ServiceCIDR' {
  if (kind === 'Service' || kind === 'EndpointSlice' || kind === 'Node') return kind
  return 'ServiceCIDR'
}
