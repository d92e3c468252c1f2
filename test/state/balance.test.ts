import fc from 'fast-check'
import t from 'tap'
import { parseEndpointSlice } from '../../lib/state/parse-endpoint-slice.js'
import { parseService } from '../../lib/state/parse-service.js'
import { Tracker } from '../../lib/state/tracker.js'
import { configWith } from '../../lib/config/load.js'
import { optionLines } from '../../lib/inspect/explain/option-lines.js'
import { substitutesOf, trackerSettings, unsupportedIn } from '../../lib/config/tracker-settings.js'
import { balanceText, choiceOf, type Substitutes } from '../../lib/state/balance.js'
import { anyText, textsOf } from '../support/corpus.js'
import { endpoint, rawService, rawSlice, plainNode } from './objects.js'

/** Annotations say which endpoint gets the next connection. Their text may be hostile. */

const substitutes: Substitutes = { maglev: { used: 'source-hash', why: 'no tables here' } }

function trackerWith(
  annotations: object,
  slices: readonly object[] = [rawSlice()],
  unsupported = unsupportedIn('ipvs', configWith({})),
) {
  const tracker = new Tracker({
    ...plainNode,
    nodeName: 'node-1',
    detectLocal: { mode: 'ClusterCIDR', cidrs: [] },
    substitutes,
    unsupported,
  })
  const put = (changed: object) => {
    const parsed = parseService(rawService({ annotations: changed, spec: { ports } }))
    if (parsed.outcome !== 'accepted') throw new Error(parsed.outcome)
    tracker.upsertService(parsed.value)
    return parsed.warnings
  }
  const warnings = put(annotations)
  for (const slice of slices) {
    const parsed = parseEndpointSlice(slice)
    if (parsed.outcome !== 'accepted') throw new Error(parsed.outcome)
    tracker.upsertEndpointSlice(parsed.value)
  }
  return { tracker, put, warnings }
}

const ports = [
  { name: 'http', protocol: 'TCP', port: 80 },
  { name: 'other', protocol: 'TCP', port: 81 },
]

const only = ({ tracker }: ReturnType<typeof trackerWith>) => {
  const update = tracker.take()
  const service = update.states[0]?.services.get('default/web:http/TCP')
  if (!service) throw new Error('no service')
  return { service, update }
}

const pod = (ip: string, name: string) => ({
  ...endpoint(ip),
  targetRef: { kind: 'Pod', name, namespace: 'default' },
})

t.test('an unknown word counts as none, and the warning names the valid ones', async (t) => {
  const world = trackerWith({ 'kube-proxy-ts/balance': 'fair\u202e\n' })
  t.equal(only(world).service.balance, undefined)
  t.same(world.warnings, [
    'annotation kube-proxy-ts/balance: "fair\\u202e\\n" has no effect; valid: round-robin, random, least-connections, weighted, source-hash, maglev, first',
  ])
  t.same(world.put({ 'kube-proxy-ts/balance': 'first' }), [])
  t.match(only(world).service.balance, { asked: 'first', used: 'first', why: undefined })
})

t.test('what a mode cannot do is replaced, and said once for all ports', async (t) => {
  const world = trackerWith({ 'kube-proxy-ts/balance': 'maglev' })
  const { service, update } = only(world)
  t.match(service.balance, { asked: 'maglev', used: 'source-hash' })
  t.match(update.warnings, [
    {
      service: { namespace: 'default', name: 'web' },
      event: 'BalancedOtherwise',
      warning: /maglev is not what this mode does: no tables here; source-hash is used/,
    },
  ])
  t.equal(update.warnings.length, 1)
  world.tracker.removeEndpointSlice('default', 'web-1')
  t.same(world.tracker.take().warnings, [], 'another endpoint is no news about it')
})

t.test(
  'what only another mode can do is said once for all ports, and again when it changes',
  async (t) => {
    const world = trackerWith({
      'kube-proxy-ts/max-connections': '100',
      'kube-proxy-ts/on-endpoint-removal': 'reset-after=30s',
      'kube-proxy-ts/proxy-protocol': 'v3',
      'kube-proxy-ts/keep-alive': 'off',
    })
    const { service, update } = only(world)
    const texts = [
      'annotation kube-proxy-ts/max-connections: 100 has no effect, because ipvs mode cannot do it; only userspace mode does',
      'annotation kube-proxy-ts/on-endpoint-removal: reset-after=30s has no effect, because ipvs mode cannot do it; the other modes do',
    ]
    t.same(
      service.unsupported,
      texts,
      'what makes no sense, or asks for nothing, is not among them',
    )
    const owner = { namespace: 'default', name: 'web' }
    const warning = (text: string) => ({ service: owner, event: 'NotInThisMode', warning: text })
    t.same(update.warnings, texts.map(warning))
    world.tracker.removeEndpointSlice('default', 'web-1')
    t.same(world.tracker.take().warnings, [], 'another endpoint is no news about it')
    world.put({ 'kube-proxy-ts/max-connections': '100', 'kube-proxy-ts/proxy-protocol': 'v2' })
    t.match(world.tracker.take().warnings, [{ warning: /proxy-protocol: v2 has no effect/ }])
    for (const [word, count] of [
      ['auto', 0],
      ['keep', 0],
      ['hide', 1],
    ] as const) {
      world.put({ 'kube-proxy-ts/source-address': word })
      t.equal(world.tracker.take().warnings.length, count, `endpoints see clients: ${word}`)
    }
    t.same(unsupportedIn('userspace', configWith({})), [])
    const names = unsupportedIn('nftables', configWith({})).map(({ annotation }) => annotation.name)
    t.ok(names.includes('keep-alive') && !names.includes('on-endpoint-removal'))
  },
)

t.test("where listeners have the addresses of Services, no client's address is kept", async (t) => {
  const addresses = configWith({ 'userspace.portals': 'addresses' })
  for (const [mode, config, why] of [
    ['userspace', addresses, 'with --userspace-portals=addresses'],
    ['winuserspace', configWith({}), 'on Windows'],
  ] as const) {
    const node = { nodeName: 'node-1', families: ['IPv4'] } as const
    const { unsupported } = trackerSettings(config, mode, node)
    const world = trackerWith({ 'kube-proxy-ts/source-address': 'keep' }, [], unsupported)
    const warning = `annotation kube-proxy-ts/source-address: keep has no effect, because the client's address cannot be kept ${why}`
    const { service, update } = only(world)
    t.match(update.warnings, [{ event: 'NotInThisMode', warning }])
    t.same(optionLines(service, mode), ['', `The ${warning}.`], 'explain says it, too')
    for (const word of ['hide', 'auto']) {
      world.put({ 'kube-proxy-ts/source-address': word, 'kube-proxy-ts/max-connections': '9' })
      t.same(world.tracker.take().warnings, [], word)
    }
  }
})

t.test('ipvs mode has a Maglev of its own, and says that it is another', async (t) => {
  const choice = choiceOf('maglev', substitutesOf('ipvs'))
  t.equal(choice.used, 'maglev', 'the scheduler mh, which moves fewer clients than any other')
  t.match(
    balanceText(choice),
    /maglev is not what this mode does: the kernel's own table is smaller, .*; the scheduler mh is used/,
  )
})

t.test('weights: address, then name of the pod, then its beginning, then the slice', async (t) => {
  const endpoints = [
    pod('10.244.0.1', 'web-0'),
    pod('10.244.0.2', 'web-1'),
    pod('10.244.0.3', 'canary-x'),
    pod('10.244.0.4', 'else'),
    { ...pod('10.244.0.5', 'web-0'), targetRef: { kind: 'Node', name: 'web-0' } },
  ]
  const slice = rawSlice({ endpoints, annotations: { 'kube-proxy-ts/weight': '7' } })
  const weight = 'web-0=3, 10.244.0.2=0,canary-*=2,web-*=9'
  const { service } = only(trackerWith({ 'kube-proxy-ts/weight': weight }, [slice]))
  t.same(
    service.clusterEndpoints.map(({ weight }) => weight),
    [3, 0, 2, 7, 7],
  )
  t.notOk('podName' in (service.clusterEndpoints[0] ?? {}), 'a state holds what modes need')
})

t.test('weights that make no sense change nothing and are named', async (t) => {
  const bad = ['', 'a', 'a=', 'a=-1', 'a=65536', 'a=1=2', 'a=1,', '*=1', 'A=1', 'a=1e3', '=1']
  const prefixes = Array.from({ length: 33 }, (_, index) => `p${index}*=1`).join()
  for (const weight of [...bad, prefixes]) {
    const world = trackerWith({ 'kube-proxy-ts/weight': weight })
    t.match(world.warnings, [/^annotation kube-proxy-ts\/weight: .*has no effect; valid: NAME=/])
    t.equal(only(world).service.clusterEndpoints[0]?.weight, 1, weight)
  }
  for (const weight of ['-1', '65536', '1.5', '1e3', 'x', '', ' ']) {
    const parsed = parseEndpointSlice(rawSlice({ annotations: { 'kube-proxy-ts/weight': weight } }))
    t.match(parsed, { outcome: 'accepted', value: { endpoints: [{ weight: 1 }] } })
    t.match(parsed.outcome === 'accepted' ? parsed.warnings : [], [/valid: 0-65535$/], weight)
  }
})

t.test('no text of an annotation breaks a Service', async () => {
  fc.assert(
    fc.property(anyText(), anyText(), (balance, weight) => {
      const annotations = { 'kube-proxy-ts/balance': balance, 'kube-proxy-ts/weight': weight }
      const world = trackerWith(annotations)
      return only(world).service.internal === 'cluster' && world.warnings.length <= 2
    }),
    { examples: textsOf('balance').map((text) => [text, text]) },
  )
})
