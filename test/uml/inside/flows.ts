/** Lines and numbers of flows in ipvs mode. */
import { execFileSync } from 'node:child_process'
import t from 'tap'

execFileSync('modprobe', ['ipv6'])
const { compareVerdicts, flagsOf, skip } = await import('../../support/flow-node.js')

await t.test(
  'FL01: in ipvs mode the verdict of each connection is what its client saw',
  { skip },
  (t) => compareVerdicts(t, 'ipvs', flagsOf('ipvs')),
)
