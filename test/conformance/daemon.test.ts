/** A few cases of every topic through the whole command: flags, manifest folder, sync loop, mode. */
import t from 'tap'
import { createWorld } from '../../lib/world/world.js'
import { readCases } from './case-file.js'
import { casesFolder } from './cases-folder.js'
import { DaemonSubject } from './daemon-subject.js'
import { skips, withoutSctp } from './mode-profiles.js'
import { runCases } from './runner.js'

const skip = process.getuid?.() === 0 ? false : 'network namespaces need root'
const modes = ['nftables', 'iptables', 'userspace'] as const

const sample = [
  'S01 S07: every client reaches every ready endpoint, in both families',
  'S24: a pod that reaches itself through its Service is masqueraded',
  'S23 NF24: with node port addresses set to primary only the node',
  'S17 S19: external policy Local without any endpoint is refused',
  'S12 S13: source ranges let in only who is named',
  'E18: a change of the node',
  'S21: new endpoints do not move a client that has one',
  'CT03: UDP: a client whose Service lost its last endpoint',
  'S03 e2e service.go:2294: a Service that names another proxy',
  'R13: what changed while the proxy was down is put right at its start',
  'IT21: with masquerade-all even a pod of this node is masqueraded',
]

for (const mode of modes) {
  await t.test(`kube-proxy --manifests in ${mode} mode`, { skip }, async (t) => {
    const cases = readCases(casesFolder).filter(({ name }) =>
      sample.some((start) => name.startsWith(start)),
    )
    t.equal(cases.length, sample.length, 'every chosen case is there')
    const world = await createWorld({ name: `daemon${mode}` })
    t.teardown(() => world.close())
    await runCases({
      world,
      subject: new DaemonSubject(mode),
      cases,
      mode,
      skips: [...skips[mode], withoutSctp],
      onResult: ({ name, outcome, failures }) => {
        t.equal(outcome, 'passed', [name, ...failures].join('\n'))
      },
    })
  })
}
