import t from 'tap'
import { nftablesRuleset } from '../../lib/inspect/explain/rulesets.js'
import { walkNftables } from '../../lib/inspect/explain/nftables-walk.js'
import { nftablesPlanner } from '../../lib/modes/nftables/plan.js'
import { renderChanges, renderPlan } from '../../lib/modes/nftables/render.js'
import { maglevPlaces } from '../../lib/modes/shares.js'
import type { DesiredState } from '../../lib/state/desired-state.js'
import { service, state, states, testSettings, type ServiceSpec } from '../support/states.js'

/** `kube-proxy-ts/balance` in nftables mode: the rules, and packets walked through them. */

const clients = Array.from({ length: 10_000 }, (_, index) => `10.180.${index >> 8}.${index & 255}`)
const planOf = (of: DesiredState) => nftablesPlanner(testSettings)(of)
const textOf = (...specs: readonly ServiceSpec[]) => renderPlan(planOf(state(specs)))
const balanced = (balance: string, spec: Parameters<typeof service>[0] = {}) =>
  service({ options: { balance }, ...spec })

/** The endpoints of each client, with their probabilities. */
function endpointsOf(of: DesiredState, sources: readonly string[] = clients.slice(0, 1)) {
  const ruleset = nftablesRuleset(planOf(of))
  const node = { localAddresses: new Set(of.node.localAddresses) }
  return sources.map((source) => {
    const ways = walkNftables(
      ruleset,
      {
        ...{ family: of.family, protocol: 'TCP', source, inInterface: 'veth0' },
        ...{ destination: of.family === 'IPv4' ? '10.96.0.10' : 'fd00:96::10', port: 80 },
        ...{ mark: 0, isDnated: false, isMasqueraded: false },
      },
      node,
    )
    return ways.map(({ packet, probability }) => [packet.destination, probability] as const)
  })
}

t.test('random is the default, so it makes the same rules as no word', async (t) => {
  t.equal(textOf(balanced('random')), textOf(service()))
  t.notMatch(textOf(balanced('least-connections')), /numgen inc|jhash/)
})

t.test('round-robin, weighted and first', async (t) => {
  t.match(textOf(balanced('round-robin')), /dnat ip to numgen inc mod 2 map \{ 0 : /)
  const endpoints = [
    { ip: '10.180.0.1', weight: 6 },
    { ip: '10.180.0.2', weight: 3 },
  ]
  const weighted = balanced('weighted', {
    endpoints: [...endpoints, { ip: '10.180.0.3', weight: 0 }],
  })
  t.match(textOf(weighted), /numgen random mod 3 map/)
  t.same(endpointsOf(state([weighted])), [
    [
      ['10.180.0.1', 2 / 3],
      ['10.180.0.2', 1 / 3],
    ],
  ])
  t.same(endpointsOf(state([balanced('first', { endpoints: endpoints.toReversed() })])), [
    [['10.180.0.1', 1]],
  ])
  const huge = [
    { ip: '10.180.0.1', weight: 65_535 },
    { ip: '10.180.0.2', weight: 1 },
  ]
  const [[, second] = []] = endpointsOf(state([balanced('weighted', { endpoints: huge })]))
  t.ok(second && second[1] < 0.002, 'the smallest share that a rule has is about 0.1 %')
})

t.test('source-hash: a client goes to one endpoint, and clients are spread', async (t) => {
  for (const family of ['IPv4', 'IPv6'] as const) {
    const sources = clients.map((ip) =>
      family === 'IPv4' ? ip : `fd00:180::${ip.replaceAll('.', ':')}`,
    )
    const clusterIp = family === 'IPv4' ? '10.96.0.10' : 'fd00:96::10'
    const spec = balanced('source-hash', { clusterIp, endpoints: 4 })
    const found = endpointsOf(state([spec], family), sources.slice(0, 400))
    t.ok(found.every((ways) => ways.length === 1 && ways[0]?.[1] === 1))
    t.equal(new Set(found.map(([way]) => way?.[0])).size, 4)
  }
})

t.test('maglev: without one of 100 endpoints at most 2 % of the others move', async (t) => {
  const cluster = states()
  const hundred = Array.from({ length: 100 }, (_, index) => `10.180.40.${index}`)
  const put = (endpoints: readonly string[]) =>
    cluster.put(balanced('maglev', { endpoints })).take()
  const [first, second] = [put(hundred), put(hundred.filter((_, index) => index !== 17))]
  const before = endpointsOf(first, clients).map(([way]) => way?.[0])
  const after = endpointsOf(second, clients).map(([way]) => way?.[0])
  t.notOk(after.includes('10.180.40.17'))
  t.notOk(after.includes('10.96.0.10'), 'everybody has an endpoint')
  const others = before.filter((ip) => ip !== '10.180.40.17').length
  const moved = before.filter((ip, at) => ip !== '10.180.40.17' && ip !== after[at]).length
  t.comment(`${moved} of ${others} moved`)
  t.ok(moved / others <= 0.02)

  const planner = nftablesPlanner(testSettings)
  const [old, now] = [planner(first), planner(second)]
  const written = renderChanges(now, old).match(/ : 10\.180/g)?.length ?? 0
  t.comment(`${written} of ${maglevPlaces} places written`)
  t.ok(written < maglevPlaces * 0.04, 'the change is as small as what it changes')
  t.notMatch(renderChanges(now, old), /chain/, 'no rule is written')
})

t.test('maglev: a table goes with its Service, and with its word', async (t) => {
  const cluster = states()
  const planner = nftablesPlanner(testSettings)
  const spec = balanced('maglev', { nodePort: 30_080, externalPolicyLocal: true, endpoints: 2 })
  const before = planner(cluster.put(spec).take())
  const text = renderPlan(before)
  t.match(
    text,
    /add map ip kube-proxy places-.* typeof numgen random mod 2 : ip daddr \. tcp dport/,
  )
  t.match(text, /local-places-/, 'policy Local has a table of its own')
  const after = planner(cluster.put({ ...spec, options: {} }).take())
  const deleted = renderChanges(after, before).match(/delete element .*places-[^{]*\{[^}]*/g) ?? []
  t.equal(
    deleted.reduce((sum, line) => sum + line.split(',').length, 0),
    2 * maglevPlaces,
    'a set that comes back later is empty',
  )
  t.notMatch(renderPlan(after), /places-/)
})

t.test('with affinity a client without an endpoint gets one by the word', async (t) => {
  const affinitySeconds = 60
  t.match(textOf(balanced('source-hash', { affinitySeconds })), /jhash ip saddr mod 2 .* vmap/)
  t.match(textOf(balanced('maglev', { affinitySeconds })), /jhash ip saddr mod 2 .* vmap/)
  t.match(textOf(balanced('round-robin', { affinitySeconds })), /numgen inc mod 2 vmap/)
  const first = balanced('first', { affinitySeconds })
  t.match(textOf(first), /numgen random mod 1 vmap/)
})

t.test('a kernel without nft_hash draws by chance', async (t) => {
  const plan = nftablesPlanner({ ...testSettings, hasHash: false })
  for (const balance of ['source-hash', 'maglev']) {
    const text = renderPlan(plan(state([balanced(balance)])))
    t.match(text, /numgen random mod 2 map/)
    t.notMatch(text, /jhash|places-/)
  }
})
