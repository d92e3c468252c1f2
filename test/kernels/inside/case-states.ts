import { configWith } from '../../../lib/config/load.js'
import type { ModeName } from '../../../lib/config/config.js'
import { trackerSettings } from '../../../lib/config/tracker-settings.js'
import { addressOf } from '../../../lib/lab/world/topology.js'
import { collect } from '../../../lib/sources/collected-states.js'
import type { DesiredState } from '../../../lib/state/desired-state.js'
import { CaseServices } from '../../conformance/case-services.js'
import { readCases } from '../../conformance/case-file.js'
import { casesFolder } from '../../conformance/cases-folder.js'
import { nodeManifest } from '../../conformance/cluster-objects.js'
import { serviceManifest, sliceManifests } from '../../conformance/objects.js'

export const families = ['IPv4', 'IPv6'] as const

/** The Services of all steps of all conformance cases at once, or of the cases of some topics. */
export function statesOfCases(mode: ModeName, topics?: readonly string[]): readonly DesiredState[] {
  const { sink, taken } = collect(
    trackerSettings(configWith({}), mode, { nodeName: 'node', families }),
    families.map((family) => addressOf('node', family)),
  )
  let serial = 0
  let cases = 0
  sink.upsert('Node', nodeManifest(null))
  for (const each of readCases(casesFolder)) {
    if (topics && !topics.includes(each.topic)) continue
    cases++
    const services = new CaseServices(() => serial++)
    for (const step of each.steps) services.take(step)
    for (const known of services.known().values()) {
      // Several cases use the same names.
      const service = { ...known, name: `of-case-${cases}-${known.name}` }
      sink.upsert('Service', serviceManifest(service))
      for (const slice of sliceManifests(service)) sink.upsert('EndpointSlice', slice)
    }
  }
  return taken().states
}
