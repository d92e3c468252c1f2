/** Hairpin needs a rule for each endpoint of the node if the kernel has no `bpf` match. */
import t from 'tap'
import { createWorld } from '../../lib/lab/world/world.js'
import { readCases } from './case-file.js'
import { casesFolder } from './cases-folder.js'
import { skips, withoutSctp } from './mode-profiles.js'
import { ProcessSubject } from './process-subject.js'
import { runCases } from './runner.js'

const skip = process.getuid?.() === 0 ? false : 'network namespaces need root'

for (const backend of ['iptables', 'iptables-legacy']) {
  await t.test(`S24 ${backend} without xt_bpf: a pod reaches itself`, { skip }, async (t) => {
    const cases = readCases(casesFolder).filter(({ name }) =>
      /S24|reaches itself|itself too/.test(name),
    )
    t.ok(cases.length >= 7)
    const world = await createWorld({ name: backend.slice(0, 16) })
    t.teardown(() => world.close())
    await runCases({
      world,
      subject: new ProcessSubject(`${backend}-without-bpf`),
      cases,
      mode: 'iptables',
      skips: [...skips.iptables, ...(world.hasSctp ? [] : [withoutSctp])],
      onResult: ({ name, outcome, failures }) => {
        t.equal(outcome, 'passed', [name, ...failures].join('\n'))
      },
    })
  })
}
