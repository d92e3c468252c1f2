/**
 * One file for each mode has its text for examples/services. UPDATE_SNAPSHOTS=1 writes them anew.
 */
import t from 'tap'
import { parseObjects, renderRules } from '../../lib/index.js'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'

const folder = 'examples/services'
const objects = readdirSync(folder)
  .sort()
  .flatMap((file) => parseObjects(readFileSync(`${folder}/${file}`, 'utf8'), file))

for (const mode of ['userspace', 'iptables', 'ipvs', 'nftables'] as const) {
  t.test(`${mode} mode writes the examples as in its golden file`, (t) => {
    const { text, warnings } = renderRules({
      ...{ mode, objects, families: ['IPv4', 'IPv6'] },
      nodeAddresses: ['127.0.0.1', '192.0.2.1', '::1', '2001:db8::1'],
      configuration: { clusterCIDR: '10.244.0.0/16,fd00:244::/56' },
    })
    const file = `test/modes/${mode}-examples.rules`
    if (process.env['UPDATE_SNAPSHOTS']) writeFileSync(file, text)
    t.equal(text, readFileSync(file, 'utf8'), 'UPDATE_SNAPSHOTS=1 writes it anew')
    t.same(warnings, [])
    t.end()
  })
}
