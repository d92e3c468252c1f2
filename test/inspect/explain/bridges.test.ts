import t, { type Test } from 'tap'
import { execFileSync } from 'node:child_process'
import { onBridgesHere } from '../../../lib/inspect/explain/bridges.js'
import { verdictOf } from '../../../lib/inspect/explain/text.js'
import { enterPrivateNetns } from '../../support/private-netns.js'
import type { Packet, Way } from '../../../lib/inspect/explain/packet.js'

/** What `explain` says of a client and an endpoint that may share a bridge. */

const skip = enterPrivateNetns() ?? false

const packet: Packet = {
  ...{ family: 'IPv4', protocol: 'TCP', source: '10.0.0.2', destination: '10.0.0.3', port: 80 },
  ...{ inInterface: 'cbr0', mark: 0, isDnated: true, isMasqueraded: false },
}

function wayWith(isHiddenOnBridge: 'always' | 'if filtered'): Way {
  const way = { probability: 1, hops: [], rules: 0, chains: 0, end: 'sent' } as const
  return { ...way, packet: { ...packet, isHiddenOnBridge } }
}

const sees = 'sent to 10.0.0.3:80, which sees the sender'
const hidden = `${sees} (this node, if they share a bridge)`
const filtered = `${sees} (this node, if they share a bridge with bridge-nf-call-iptables=1)`

/** The verdicts for `auto` and `keep`. */
async function verdicts(look?: Parameters<typeof onBridgesHere>[1]) {
  const ways = await onBridgesHere([wayWith('always'), wayWith('if filtered')], look)
  return ways.map(verdictOf)
}

const facts = (exists: boolean, isFiltered: boolean) => () =>
  Promise.resolve({ exists, isFiltered })

t.test('bridges are mentioned where they may hide the sender', async (t: Test) => {
  t.same(await verdicts(() => Promise.reject(new Error('no koffi'))), [hidden, filtered])
  t.same(await verdicts(facts(false, true)), [sees, sees], 'there is none')
  t.same(await verdicts(facts(true, false)), [hidden, sees], 'rules do not see its packets')
  t.same(await verdicts(facts(true, true)), [hidden, hidden])
})

t.test('a node is asked for its bridges', { skip }, async (t: Test) => {
  execFileSync('ip', ['link', 'add', 'veth-a', 'type', 'veth', 'peer', 'name', 'veth-b'])
  t.same(await verdicts(), [sees, sees])
  execFileSync('ip', ['link', 'add', 'some', 'type', 'bridge'])
  t.equal((await verdicts())[0], hidden)
})
