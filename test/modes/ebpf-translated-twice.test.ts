import t from 'tap'
import { translatedTwice, type TranslatedTwice } from '../../lib/modes/ebpf/translated-twice.js'
import type { DesiredState } from '../../lib/state/desired-state.js'
import { service, states } from '../support/states.js'

t.test('Services whose endpoints rules translate again are found as they change', async (t) => {
  let last: TranslatedTwice | undefined
  const found = (state: DesiredState) => {
    last = translatedTwice(state, last)
    const anew = translatedTwice(state, undefined)
    t.same(new Set(last.keys), new Set(anew.keys), 'as at a new start')
    t.same(new Set(last.here), new Set(anew.here))
    return [...last.keys].sort()
  }
  const cluster = states()
  const own = '192.0.2.1'
  const at = (name: string, ip: string, port: number) =>
    service({ name, clusterIp: `10.96.1.${name.length}`, endpoints: [{ ip, port }] })
  const outside = at('outside', '203.0.113.7', 80)
  const here = at('here', own, 30_080)
  t.same(found(cluster.put(outside, here, at('web', '10.180.0.1', 80)).take()), [])
  const balanced = service({ name: 'lb', loadBalancerIps: ['203.0.113.7'] })
  t.same(found(cluster.put(balanced).take()), ['default/outside:http/TCP'])
  const nodePort = service({ name: 'np', clusterIp: '10.96.1.9', nodePort: 30_080 })
  t.same(found(cluster.put(nodePort).take()).length, 2, 'and one at a node port')
  t.same(found(cluster.remove(balanced).take()), ['default/here:http/TCP'])
  t.same(found(cluster.put({ ...nodePort, nodePort: 30_081 }).take()), [])
  t.same(found(cluster.put(at('here', own, 30_081)).take()), ['default/here:http/TCP'])
  t.same(found(cluster.remove(here).take()), [])
  const moved = states('IPv4', { nodePortAddresses: ['10.0.0.0/8'] })
  t.same(found(moved.put(here, nodePort).take()), [], 'node ports are served elsewhere')
})
