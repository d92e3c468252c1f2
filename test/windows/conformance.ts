/**
 * Runs conformance cases with the Windows build on the node of a world: `conformance.js [TEXT]...`
 */
import { podsOfNode } from '../../lib/lab/world/topology.js'
import { createWorld } from '../../lib/lab/world/world.js'
import { readCases } from '../conformance/case-file.js'
import { casesFolder } from '../conformance/cases-folder.js'
import { DaemonSubject } from '../conformance/daemon-subject.js'
import { skips, withoutSctp, type Skip } from '../conformance/mode-profiles.js'
import { tableText, tapLine } from '../conformance/report.js'
import { runCases } from '../conformance/runner.js'
import { WineSystem } from './wine-system.js'

const mode = 'winuserspace'
/** Flows that Wine does not support. */
const underWine: readonly Skip[] = [
  {
    reason: 'Wine tells no interfaces, so that the proxy sees no IPv6',
    flows: ({ family }) => family === 'IPv6',
  },
  {
    reason: 'Wine: a UDP socket at an address hears only the interface that has the address',
    flows: ({ protocol, client, target }) =>
      protocol === 'UDP' && client.place !== 'node' && !target.startsWith('node'),
  },
  {
    reason:
      'Wine tells no interfaces, so that UDP node ports answer from the address of the way back',
    flows: ({ protocol, client, target }) =>
      protocol === 'UDP' &&
      target.startsWith('node') &&
      (target !== 'node' || podsOfNode.some((pod) => pod === client.place)),
  },
]
const wanted = process.argv.slice(2)
const asked = readCases(casesFolder).filter(
  ({ topic, name }) =>
    wanted.length === 0 || wanted.some((text) => `${topic}: ${name}`.includes(text)),
)
const cases = asked.filter(({ settings }) => settings.nodePortAddresses.includes('all'))
for (const { topic, name } of asked.filter((each) => !cases.includes(each))) {
  console.log(`# left out, because Wine tells no interfaces to choose from: ${topic}: ${name}`)
}

const world = await createWorld({ name: 'windows' })
let number = 0
try {
  console.log('TAP version 14')
  const results = await runCases({
    world,
    subject: new DaemonSubject({ mode }, new WineSystem()),
    cases,
    mode,
    skips: [...underWine, ...skips[mode], withoutSctp],
    onResult: (result) => process.stdout.write(tapLine(++number, mode, result)),
  })
  console.log(`1..${number}`)
  console.log(tableText([{ mode, results }], { isShort: true }).replaceAll(/^/gm, '# '))
  process.exitCode = results.some(({ outcome }) => outcome === 'failed') ? 1 : 0
} finally {
  await world.close()
}
