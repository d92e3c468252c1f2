import t from 'tap'
import { tables, type SavedTable } from '../../../lib/kernel/iptables.js'
import { userspaceDifferences } from '../../../lib/modes/userspace/differences.js'
import { userspacePlanner, type UserspacePlan } from '../../../lib/modes/userspace/plan.js'
import { fixedRules, placeRules } from '../../../lib/modes/userspace/render.js'
import { service, states, testSettings, type ServiceSpec } from '../../support/states.js'

const owner = 'default/web:http'
const remote = { ip: '10.180.1.1', local: false }

/** The differences of a Service when the kernel has only the rules of its two listeners. */
function differencesOf(endpoints: ServiceSpec['endpoints'], change = (text: string) => text) {
  const spec = service({ nodePort: 30080, externalPolicyLocal: true, endpoints })
  const plan = userspacePlanner(testSettings)(states().put(spec).take())
  const listening = new Set(['tcp 40001', 'tcp 40002'])
  const found = userspaceDifferences(plan, [], { tables: saved(plan, change), listening })
  return found.filter((difference) => difference.owner === owner)
}

function saved({ services }: UserspacePlan, change: (text: string) => string): SavedTable[] {
  const placed = [...services.values()].flatMap(({ rules }) =>
    placeRules(rules, { cluster: '40001', local: '40002' }),
  )
  return tables.map((table) => {
    const chains = new Map<string, { name: string; policy: string; rules: string[] }>()
    for (const { chain, rule } of placed.filter((one) => one.table === table)) {
      const known = chains.get(chain) ?? { name: chain, policy: '-', rules: [] }
      known.rules.push(change(rule.text))
      chains.set(chain, known)
    }
    return { table, chains }
  })
}

t.test('a Service whose two listeners are as planned has no differences', async (t) => {
  const withLocal = [{ ip: '10.180.0.1' }, remote]
  t.same(differencesOf(withLocal), [])
  t.same(differencesOf([remote]), [], 'also where no rule leads to that of local endpoints')
  t.same(differencesOf([]), [], 'and where none leads to any')
})

t.test(
  'a guard with another port is a difference, also where only it names the port',
  async (t) => {
    const toAnother = (text: string) => text.replace('40001', '40002')
    t.match(differencesOf([], toAnother), [{ found: undefined }, { expected: undefined }])
  },
)

t.test('a rule of no Service is named if it comes after those of Services', async (t) => {
  const plan = userspacePlanner(testSettings)(states().put(service()).take())
  const fixed = fixedRules({ portRange: { from: 1, to: 9 }, logsRefused: false })
  const texts = fixed
    .filter(({ chain }) => chain === 'KUBE-PORTALS-DIRECT')
    .map(({ rule }) => rule.text)
  const seen = (order: (rules: readonly string[]) => readonly string[]) => {
    const withFixed = saved(plan, (text) => text).map(({ table, chains }) => ({
      table,
      chains: new Map(
        [...chains].map(([name, one]) => {
          const rules = name === 'KUBE-PORTALS-DIRECT' ? order(one.rules) : one.rules
          return [name, { ...one, rules }]
        }),
      ),
    }))
    const listing = { tables: withFixed, listening: new Set<string>() }
    return userspaceDifferences(plan, fixed, listing)
      .filter(({ place }) => place.name.includes('KUBE-PORTALS-DIRECT'))
      .map(({ expected }) => expected)
  }
  t.same(
    seen((rules) => [...texts, ...rules]),
    [],
  )
  t.match(
    seen((rules) => [...rules, ...texts]),
    [/^first: .*udp --dport 1:9 -j KUBE-PORTALS-LISTENER$/],
  )
})
