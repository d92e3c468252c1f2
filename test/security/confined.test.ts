/** The daemon serves with only the capabilities and system calls that the manifests give it. */
import { readFileSync } from 'node:fs'
import { spawnSync } from 'node:child_process'
import t from 'tap'
import { createWorld } from '../../lib/lab/world/world.js'
import { DaemonSubject, onLinux } from '../conformance/daemon-subject.js'
import { skips, withoutSctp } from '../conformance/mode-profiles.js'
import { runCases } from '../conformance/runner.js'
import { sampleOfCases } from '../conformance/sample.js'
import { cgroupSkip } from '../support/cgroup-client.js'
import { confinementOf, confinementSkip, profileFile } from './confinement.js'

const { profileOf } = (await import(
  new URL('../../../scripts/seccomp.mjs', import.meta.url).href
)) as {
  profileOf: (mode: string) => string
}

const skip = confinementSkip
const modes = ['nftables', 'iptables', 'userspace', 'ipvs', 'ebpf'] as const

t.test('the profiles are those of the table', (t) => {
  for (const mode of modes)
    t.equal(readFileSync(profileFile(mode), 'utf8'), profileOf(mode), `${mode}: npm run docs`)
  t.end()
})

t.test('what the lists leave out is refused', { skip }, (t) => {
  const inside = (...words: string[]) => {
    const [file = '', ...args] = [...confinementOf('nftables'), ...words]
    return spawnSync(file, args, { encoding: 'utf8' })
  }
  const status = inside('cat', '/proc/self/status').stdout
  t.match(status, /^CapEff:\t0000000000003000$/m, 'NET_ADMIN and NET_RAW')
  t.match(status, /^Seccomp:\t2$/m)
  t.match(status, /^NoNewPrivs:\t1$/m)
  t.match(inside('unshare', '--user', 'true').stderr, 'Operation not permitted', 'a system call')
  t.end()
})

// ipvs mode needs a kernel with IPVS, so its test is test/uml/inside/confined.ts.
for (const mode of ['nftables', 'iptables', 'userspace', 'ebpf'] as const) {
  const options = { skip: skip || (mode === 'ebpf' && cgroupSkip) }
  t.test(`${mode} mode serves with the rights of its overlay`, options, async (t) => {
    const world = await createWorld({ name: `confined${mode}`, withCgroup: mode === 'ebpf' })
    t.teardown(() => world.close())
    await runCases({
      world,
      subject: new DaemonSubject({ mode }, onLinux(confinementOf(mode))),
      cases: sampleOfCases(),
      mode,
      skips: [...skips[mode], withoutSctp],
      onResult: ({ name, outcome, failures }) => {
        t.equal(outcome, 'passed', [name, ...failures].join('\n'))
      },
    })
  })
}
