/** Probes of modes while another program holds the xtables lock. */
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { probeDefaults } from '../../lib/modes/ipvs/probe.js'
import { probeUserspace } from '../../lib/modes/userspace/probe.js'
import { enterPrivateNetns } from '../support/private-netns.js'
import { programSkip } from '../support/netns.js'

const skip = enterPrivateNetns() || programSkip('iptables-legacy') || programSkip('flock')
const folder = mkdtempSync(join(tmpdir(), 'probe-lock-'))
t.teardown(() => rmSync(folder, { recursive: true }))
const lockFile = join(folder, 'lock')

const probes = {
  userspace: async (log: Log) => {
    const findings = await probeUserspace({ log })
    return findings.filter(({ ok, what }) => !ok && !what.includes('koffi'))
  },
  ipvs: async (log: Log) => {
    await probeDefaults.checkIptables('IPv4', log)
    return []
  },
}
type Log = Parameters<typeof probeUserspace>[0]['log']

for (const [mode, probe] of Object.entries(probes)) {
  t.test(`IT47: the probe of ${mode} mode waits for the lock of others`, { skip }, async (t) => {
    // kubelet's chain makes the legacy backend the one of this node.
    execFileSync('iptables-legacy', ['-t', 'mangle', '-N', 'KUBE-IPTABLES-HINT'])
    t.teardown(() => execFileSync('iptables-legacy', ['-t', 'mangle', '-X', 'KUBE-IPTABLES-HINT']))
    process.env.XTABLES_LOCKFILE = lockFile
    t.teardown(() => delete process.env.XTABLES_LOCKFILE)
    const holder = spawn('flock', [lockFile, 'cat'], { stdio: ['pipe', 'pipe', 'inherit'] })
    t.teardown(() => holder.kill())
    holder.stdin.write('held\n')
    await once(holder.stdout, 'data')
    const waits: string[] = []
    const log: Log = {
      ...{ debug() {}, info() {}, error() {} },
      warn: (_, message) => {
        waits.push(message)
        holder.stdin.end()
      },
    }
    t.same(await probe(log), [])
    t.same(waits, ['the xtables lock is held, waiting'])
  })
}
