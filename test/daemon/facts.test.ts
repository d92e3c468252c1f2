import t from 'tap'
import { mkdirSync, writeFileSync } from 'node:fs'
import { ipFamilies, nodeNameOf } from '../../lib/daemon/node-facts.js'
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

t.test('L13: the OOM score is written, and a failure is reported', async (t) => {
  const root = t.testdir({})
  t.match(setOomScore(-999, root), /ENOENT/)
  mkdirSync(`${root}/self`)
  t.equal(setOomScore(-999, root), undefined)
})
