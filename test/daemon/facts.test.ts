import t from 'tap'
import { mkdirSync, writeFileSync } from 'node:fs'
import { familyWatch, ipFamilies, nodeNameOf } from '../../lib/daemon/node-facts.js'
import type { IpFamily } from '../../lib/state/ip.js'
import { setOomScore } from '../../lib/daemon/node-settings.js'

t.test(
  'L02: the node name is trimmed and lower case, the override wins, blank is refused',
  async (t) => {
    t.equal(nodeNameOf('', ' Node-1\n'), 'node-1')
    t.equal(nodeNameOf('OTHER', 'node-1'), 'other')
    t.throws(() => nodeNameOf(' ', 'x'), /hostname-override/)
  },
)

t.test('L10: IPv6 is used if the kernel has it and it is not disabled', async (t) => {
  const root = t.testdir({ net: {}, sys: { net: { ipv6: { conf: { all: {} } } } } })
  t.same(ipFamilies(root), ['IPv4'])
  writeFileSync(`${root}/net/if_inet6`, '')
  t.same(ipFamilies(root), ['IPv4', 'IPv6'], 'no switch means not switched off')
  writeFileSync(`${root}/sys/net/ipv6/conf/all/disable_ipv6`, '1\n')
  t.same(ipFamilies(root), ['IPv4'])
  writeFileSync(`${root}/sys/net/ipv6/conf/all/disable_ipv6`, '0\n')
  t.same(ipFamilies(root), ['IPv4', 'IPv6'])
})

t.test('L10: a family that comes later is told of, again after it was gone', async (t) => {
  const warned: object[] = []
  let present: readonly IpFamily[] = ['IPv4']
  const changed = familyWatch(['IPv4'], { warn: (fields) => warned.push(fields) }, () => present)
  changed()
  t.same(warned, [])
  present = ['IPv4', 'IPv6']
  changed()
  changed()
  t.same(warned, [{ family: 'IPv6' }])
  present = ['IPv4']
  changed()
  present = ['IPv4', 'IPv6']
  changed()
  t.equal(warned.length, 2)
})

t.test('L13: the OOM score is written, and a failure is reported', async (t) => {
  const root = t.testdir({})
  t.match(setOomScore(-999, root), /ENOENT/)
  mkdirSync(`${root}/self`)
  t.equal(setOomScore(-999, root), undefined)
})
