/** ipvs mode serves with only the rights of its overlay. Prints TAP. */
import { execFileSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { createWorld } from '../../../lib/lab/world/world.js'
import { confinementOf } from '../../security/confinement.js'
import { DaemonSubject, onLinux } from '../../conformance/daemon-subject.js'
import { runCases } from '../../conformance/runner.js'
import { sampleOfCases } from '../../conformance/sample.js'
import { skips, withoutSctp } from '../../conformance/mode-profiles.js'
import { program } from '../../support/program.js'

const project = new URL('../../../../', import.meta.url)
const config = `--config=${fileURLToPath(new URL('examples/kubernetes/overlays/ipvs/config.conf', project))}`

/**
 * A few cases, because one takes ten seconds here. They need servers, sets, rules and conntrack.
 */
const cases = sampleOfCases().filter(({ name }) => /^(S01|S12|S21|CT03)\b/.test(name))

await t.test('this kernel refuses what the list leaves out', async (t) => {
  const [file = '', ...args] = confinementOf('ipvs')
  const status = execFileSync(file, [...args, 'cat', '/proc/self/status'], { encoding: 'utf8' })
  t.match(status, /^CapEff:\t0000000000003000$/m, 'NET_ADMIN and NET_RAW')
  t.match(status, /^Seccomp:\t2$/m)
  t.throws(() => execFileSync(file, [...args, 'unshare', '--user', 'true'], { stdio: 'pipe' }), {
    message: /Operation not permitted/,
  })
})

await t.test('ipvs mode serves with the rights of its overlay', async (t) => {
  t.equal(cases.length, 4)
  const world = await createWorld({ name: 'confined' })
  t.teardown(() => world.close())
  // This is the part of the init container. Only it may load modules and set values of the kernel.
  const init = await world.exec('node', [process.execPath, program, '--init-only', config])
  t.equal(init.code, 0, init.stderr)
  await runCases({
    world,
    subject: new DaemonSubject({ mode: 'ipvs' }, onLinux(confinementOf('ipvs'))),
    cases,
    mode: 'ipvs',
    skips: [...skips.ipvs, withoutSctp],
    onResult: ({ name, outcome, failures }) => {
      t.equal(outcome, 'passed', [name, ...failures].join('\n'))
    },
  })
})
