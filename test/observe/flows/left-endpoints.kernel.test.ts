import t from 'tap'
import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { renameSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { connectionsIn } from '../../../lib/inspect/top/daemon-numbers.js'
import { endpoint, rawService, rawSlice } from '../../state/objects.js'
import * as node from '../../support/flow-node.js'
import { kubeProxy, startProxy } from '../../support/live-daemon.js'

const { skip, flagsOf, page, startServers, until, visits } = node

const flags = flagsOf('nftables')
const folder = flags[flags.indexOf('--manifests') + 1] ?? ''

/** A Service with one endpoint, which a roll-out replaces. */
function roll(ip: string): void {
  const spec = { clusterIP: '10.96.0.50', clusterIPs: ['10.96.0.50'] }
  const objects = [
    rawService({ name: 'rolled', spec }),
    rawSlice({ name: 'rolled', service: 'rolled', endpoints: [endpoint(ip)] }),
  ]
  const text = objects.map((each) => JSON.stringify(each)).join('\n---\n')
  writeFileSync(join(folder, 'rolled.new'), text)
  renameSync(join(folder, 'rolled.new'), join(folder, 'rolled.yaml'))
}

t.test('the numbers of an endpoint go after it has left its Service', { skip }, async (t) => {
  for (const state of ['time_wait', 'close', 'last_ack', 'fin_wait', 'close_wait']) {
    execFileSync('sysctl', ['-qw', `net.netfilter.nf_conntrack_tcp_timeout_${state}=2`])
  }
  await startServers(t)
  roll('10.244.1.1')
  const proxy = await startProxy(t, flags)
  const counted = async () => {
    await visits(1, '10.96.0.50')
    const all = connectionsIn(await page())
    const own = all.filter(({ service }) => service === 'default/rolled:http')
    return own.map((each) => each.endpoint)
  }
  await until(counted, ([first]) => first === '10.244.1.1:8080')
  // While it is open, the numbers stay, however slow the machine is.
  const open = connect(80, '10.96.0.50')
  await once(open, 'connect')
  roll('10.244.1.2')
  await until(counted, ({ length }) => length === 2)
  open.destroy()
  await until(counted, ({ length }) => length === 1)
  t.same(await counted(), ['10.244.1.2:8080'], 'the one that it has now stays')
  await proxy.end('SIGTERM')
  await kubeProxy('cleanup')
})
