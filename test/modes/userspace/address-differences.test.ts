import t from 'tap'
import { addressDifferences } from '../../../lib/modes/userspace/portals/address-differences.js'
import { userspacePlanner } from '../../../lib/modes/userspace/plan.js'
import { service, states, testSettings } from '../../support/states.js'

void t.test('differences of addresses and listeners are reported', async (t) => {
  const planner = userspacePlanner({ ...testSettings, portals: 'addresses' })
  const inside = service({ name: 'inside', clusterIp: '127.1.0.5', port: 8080 })
  const plan = planner(
    states()
      .put(inside, service({ nodePort: 30080 }))
      .take(),
  )
  const link = {
    ours: () => Promise.resolve(['10.96.0.99']),
    foreign: () => Promise.resolve(new Set(['127.0.0.1'])),
  }
  const listening = { protocol: 'tcp', ip: '127.1.0.5', port: 8080 } as const
  const owner = 'default/web:http'
  const web = { place: { kind: 'address', name: '10.96.0.10' }, found: undefined, owner }
  const anywhere = { place: { kind: 'address', name: '0.0.0.0' }, found: undefined, owner }
  t.same(await addressDifferences(plan, link, [listening]), [
    // The listener at 127.1.0.5 needs no address, because all of 127.0.0.0/8 is local.
    { ...web, expected: 'the address', isWhole: true },
    { ...web, expected: 'listen TCP 10.96.0.10:80' },
    { ...anywhere, expected: 'listen TCP 0.0.0.0:30080' },
    {
      place: { kind: 'address', name: '10.96.0.99' },
      expected: undefined,
      found: 'the address',
      owner: '',
    },
  ])
})
