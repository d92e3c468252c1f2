import t from 'tap'
import { missingSystem } from '../../../lib/modes/systems.js'
import { modeNames } from '../../../lib/modes/registry.js'
import { readCases } from '../../conformance/case-file.js'
import { casesFolder } from '../../conformance/cases-folder.js'
import { runCases } from '../../conformance/runner.js'
import {
  isSimulated,
  simulationSkips,
  SimulatedSubject,
  SimulatedWorld,
} from '../../conformance/simulated-world.js'

const cases = readCases(casesFolder).filter(isSimulated)

/** The simulation agrees with the cases, which `npm run conformance` checks with real packets. */
for (const mode of modeNames.filter((mode) => !missingSystem(mode, 'linux'))) {
  t.test(`the simulation does in ${mode} mode what packets do in every case`, async (t) => {
    const results = await runCases({
      world: new SimulatedWorld(),
      subject: new SimulatedSubject(mode),
      cases,
      mode,
      skips: simulationSkips(mode),
    })
    const failed = results.filter(({ outcome }) => outcome === 'failed')
    t.same(
      failed.map(({ topic, name, failures }) => [`${topic}: ${name}`, ...failures]),
      [],
    )
    const passed = results.filter(({ outcome }) => outcome === 'passed').length
    t.ok(passed > 150, `${passed} cases passed`)
  })
}
