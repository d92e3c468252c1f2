import t from 'tap'
import { isSourceHash, sourceIn } from '../../lib/kernel/iptables.js'
import { iptablesRuleset } from '../../lib/inspect/explain/rulesets.js'
import { walkIptables } from '../../lib/inspect/explain/iptables-walk.js'
import { iptablesPlanner, offlineFacts } from '../../lib/modes/iptables/plan.js'
import { renderPlan } from '../../lib/modes/iptables/render.js'
import { service, state, testSettings, type ServiceSpec } from '../support/states.js'
import type { IpFamily } from '../../lib/state/ip.js'

/** `kube-proxy-ts/balance` in iptables mode: the rules, and packets walked through them. */

const settings = { ...testSettings, ...offlineFacts }
const balanced = (balance: string, spec: Parameters<typeof service>[0] = {}) =>
  service({ options: { balance }, ...spec })
const planOf = (spec: ServiceSpec, family: IpFamily = 'IPv4') =>
  iptablesPlanner(settings)(state([spec], family))
const textOf = (spec: ServiceSpec) => renderPlan(planOf(spec))

/** The endpoints of each client, with their probabilities. */
function walk(spec: ServiceSpec, sources: readonly string[], family: IpFamily = 'IPv4') {
  const rules = iptablesRuleset(planOf(spec, family))
  return sources.map((source) =>
    walkIptables(
      rules,
      {
        ...{ family, protocol: 'TCP', source, inInterface: 'veth0', port: 80, mark: 0 },
        ...{ destination: spec.clusterIp, isDnated: false, isMasqueraded: false },
      },
      { localAddresses: new Set() },
    )
      .filter(({ probability }) => probability > 0)
      .map(({ packet, probability }) => [packet.destination, Number(probability.toFixed(6))]),
  )
}

t.test('random is the default', async (t) => {
  for (const word of ['random', 'least-connections']) {
    t.equal(textOf(balanced(word)), textOf(service()), word)
  }
})

t.test('round-robin counts packets, and the last endpoint takes the rest', async (t) => {
  const spec = balanced('round-robin', { endpoints: 3 })
  const every = [...textOf(spec).matchAll(/--mode nth --every (\d) --packet 0/g)]
  t.same(
    every.map(([, number]) => number),
    ['3', '2'],
  )
  const third = Number((1 / 3).toFixed(6))
  t.same(walk(spec, ['10.180.9.9']), [
    ['10.180.0.1', '10.180.0.2', '10.180.0.3'].map((ip) => [ip, third]),
  ])
})

t.test('weighted and first', async (t) => {
  const endpoints = [
    { ip: '10.180.0.1', weight: 1 },
    { ip: '10.180.0.2', weight: 6 },
    { ip: '10.180.0.3', weight: 3 },
    { ip: '10.180.0.4', weight: 0 },
  ]
  t.same(walk(balanced('weighted', { endpoints }), ['10.180.9.9']), [
    [
      ['10.180.0.1', 0.1],
      ['10.180.0.2', 0.6],
      ['10.180.0.3', 0.3],
    ],
  ])
  t.same(walk(balanced('first', { endpoints }), ['10.180.9.9']), [[['10.180.0.2', 1]]])
})

t.test('source-hash: every client has one endpoint, and clients are spread', async (t) => {
  const clients = Array.from({ length: 1000 }, (_, index) => `10.${index >> 8}.7.${index & 255}`)
  for (const family of ['IPv4', 'IPv6'] as const) {
    const sources =
      family === 'IPv4' ? clients : clients.map((ip) => `fd00::${ip.replaceAll('.', ':')}`)
    const clusterIp = family === 'IPv4' ? '10.96.0.10' : 'fd00:96::10'
    const spec = balanced('source-hash', { clusterIp, endpoints: 5 })
    const found = walk(spec, sources, family)
    t.ok(found.every((ways) => ways.length === 1 && ways[0]?.[1] === 1))
    t.same(walk(spec, sources, family), found)
    const counts = new Map<unknown, number>()
    for (const [way] of found) counts.set(way?.[0], (counts.get(way?.[0]) ?? 0) + 1)
    t.equal(counts.size, 5)
    for (const count of counts.values()) t.ok(count > 150 && count < 250, String(count))
  }
})

t.test('a kernel without the bpf match draws by chance', async (t) => {
  const plan = iptablesPlanner({ ...settings, hasBpf: false })
  const text = renderPlan(plan(state([balanced('source-hash')])))
  t.match(text, /--mode random --probability 0\.5/)
  t.notMatch(text, /--bytecode/)
})

t.test('the two kinds of programs are told apart', async (t) => {
  const [, bytecode = ''] = sourceIn('IPv4', { index: 1, count: 2 }).args
  t.ok(isSourceHash(bytecode))
  const hairpin = /--bytecode "?([0-9, ]+)/.exec(textOf(service()))?.[1] ?? ''
  t.not(hairpin, '')
  t.notOk(isSourceHash(hairpin))
})

t.test('with affinity a client without an endpoint gets one by the word', async (t) => {
  const affinitySeconds = 60
  const text = textOf(balanced('source-hash', { affinitySeconds }))
  t.match(text, /--bytecode .* -j KUBE-SEP-/)
  t.match(textOf(balanced('first', { affinitySeconds })), /--rcheck/)
})

t.test('with affinity and many endpoints each word chooses as with few', async (t) => {
  const endpoints = Array.from({ length: 100 }, (_, index) => ({
    ip: `10.180.0.${index + 1}`,
    weight: index === 7 ? 101 : index % 2,
  }))
  const chances = (word: string) =>
    new Map(
      walk(balanced(word, { affinitySeconds: 60, endpoints }), ['10.180.9.9'])[0] as [
        string,
        number,
      ][],
    )
  const weighted = chances('weighted')
  t.equal(weighted.size, 50, 'weight 0 gets nothing')
  t.ok(Math.abs((weighted.get('10.180.0.8') ?? 0) - 101 / 150) < 1e-4)
  t.ok(Math.abs((weighted.get('10.180.0.2') ?? 0) - 1 / 150) < 1e-4)
  t.same([...chances('first')], [['10.180.0.8', 1]])
  t.equal(chances('round-robin').size, 100)
  t.equal(chances('source-hash').size, 1)
})
