import t from 'tap'
import { DashboardSource } from '../../lib/page/dashboard/source.js'
import { explainPacket } from '../../lib/inspect/explain/explain.js'
import { modeLoaders } from '../../lib/modes/registry.js'
import { pathView } from '../../lib/page/path-view.js'
import { PodNames } from '../../lib/sources/pod-names.js'
import { understand } from '../../lib/inspect/explain/question.js'
import { service, state, states, testConfig } from '../support/states.js'
import type { Derivation } from '../../lib/state/persistent-map.js'
import type { DesiredService, DesiredState } from '../../lib/state/desired-state.js'
import type { ModeName } from '../../lib/config/config.js'
import type { ServiceLine } from '../../lib/page/view.js'
import type { SyncReport } from '../../lib/sync/syncer.js'

const modes: readonly ModeName[] = ['userspace', 'iptables', 'ipvs', 'nftables']
const silent = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} }

/** The page of a mode that plans and applies nothing. It records what is asked. */
async function opened(mode: ModeName) {
  const definition = await modeLoaders[mode]()
  const ofMode = definition.planner(testConfig)
  const seen = { services: new Set<string>(), plans: 0, parts: new Set<string>() }
  const made = definition.planner(testConfig)
  const planner: typeof made = {
    ...made,
    plan: (state) => {
      seen.plans++
      return made.plan(state)
    },
    only: (plan, keys) => {
      for (const key of keys) seen.parts.add(key)
      return made.only(plan, keys)
    },
  }
  const source = new DashboardSource({
    ...{ mode, nodeName: 'node-1', podNames: new PodNames(), log: silent, flows: undefined },
    current: () => ({ config: testConfig, planner }),
    count: () => Promise.resolve([]),
  })
  const memory: Derivation<DesiredService, DesiredService> = {}
  const noted = (each: DesiredService) =>
    new Proxy(each, {
      get: (target, name) => {
        seen.services.add(target.name.name)
        return Reflect.get(target, name) as unknown
      },
    })
  const begin = (state: DesiredState) => {
    source.started([{ ...state, services: state.services.derive(memory, noted) }])
  }
  const end = (state: DesiredState, change: Partial<SyncReport> = {}) => {
    const cost = { planMs: 0, applyMs: 0, bytes: 0, objects: 0, full: false }
    const plan = ofMode.plan(state)
    source.synced({
      family: state.family,
      outcome: 'applied',
      failed: [],
      plan,
      ...cost,
      ...change,
    })
  }
  const sync = (state: DesiredState) => {
    begin(state)
    end(state)
  }
  const lineOf = (name: string): ServiceLine | undefined =>
    source.view().services.get(`default/${name}:http`)
  return { source, seen, begin, end, sync, lineOf }
}

const numbered = (index: number, endpoints = 2) =>
  service({
    name: `s${index}`,
    clusterIp: `10.96.${index >> 8}.${index & 255}`,
    ...(index % 10 === 0 ? { nodePort: 30_000 + index } : {}),
    endpoints,
  })
const many = Array.from({ length: 3_000 }, (_, index) => numbered(index + 1))

for (const mode of modes) {
  t.test(
    `${mode}: a change looks at what changed and what is shown, and plans nothing`,
    async (t) => {
      const { source, seen, sync } = await opened(mode)
      const cluster = states().put(...many)
      sync(cluster.take())
      await source.perform({ do: 'select', service: 'default/s7:http' })
      t.equal(source.view().services.size, 3_000)
      t.equal(source.view().service.name, 'default/s7:http')

      seen.services.clear()
      seen.parts.clear()
      sync(cluster.put(numbered(2_000, 3)).take())
      source.view()
      t.same([...seen.services].sort(), ['s2000', 's7'], 'the one that changed, and the one shown')
      t.same([...seen.parts], [], 'and not even the one that is shown')

      seen.services.clear()
      sync(cluster.put(numbered(7, 3)).take())
      t.equal(source.view().pods.length, 3)
      t.same([...seen.services], ['s7'])
      t.same([...seen.parts], ['default/s7:http/TCP'])
      t.equal(seen.plans, 0)
    },
  )

  t.test(`${mode}: the way through one part of the plan is that through the whole`, async (t) => {
    const { source, sync } = await opened(mode)
    const shared = { externalIps: ['198.51.100.7'], port: 80 }
    const state = states()
      .put(
        ...many.slice(0, 20),
        service({ ...shared, name: 'a', clusterIp: '10.97.0.1', endpoints: 3 }),
        service({ ...shared, name: 'b', clusterIp: '10.97.0.2', endpoints: 5 }),
        service({
          ...{ name: 'lb', clusterIp: '10.97.0.3', nodePort: 30_123, endpoints: 20 },
          ...{ loadBalancerIps: ['198.51.100.8'], sourceRanges: ['203.0.113.0/24'] },
        }),
        service({ name: 'sticky', clusterIp: '10.97.0.4', affinitySeconds: 60 }),
        service({ name: 'empty', clusterIp: '10.97.0.5', endpoints: 0 }),
      )
      .take()
    sync(state)
    for (const name of ['a', 'b', 'lb', 'sticky', 'empty', 's10']) {
      await source.perform({ do: 'select', service: `default/${name}:http` })
      for (const { name: target, address } of source.view().targets) {
        await source.perform({ do: 'target', target })
        for (const [sender, from] of [
          ['client-pod', 'pod'],
          ['outside', 'outside'],
          ['node', 'node'],
        ] as const) {
          await source.perform({ do: 'sender', sender })
          const question = understand({ target: address, from, protocol: 'TCP' }, [state])
          if (typeof question === 'string') throw new Error(question)
          const ways = explainPacket(mode, state, testConfig, question.packet)
          const whole = pathView(ways, (ip, port) => `${ip}:${port}`)
          const { path } = source.view()
          // The page says nothing of addresses that are no endpoints, so these are not compared.
          const ends = (all: typeof path) =>
            all.ways.map(({ verdict, probability, hops }) => ({ verdict, probability, hops }))
          t.same(path.shared, whole.shared, `${name} from ${from} to ${target}`)
          t.same(ends(path), ends(whole))
        }
      }
    }
  })

  t.test(`${mode}: the page shows what is applied, and marks what is on its way`, async (t) => {
    const { source, begin, end, lineOf } = await opened(mode)
    const cluster = states().put(numbered(1, 2))
    const first = cluster.take()
    begin(first)
    t.equal(lineOf('s1')?.note, 'on its way to the kernel')
    t.same(source.view().path.ways, [])
    t.match(source.view().path.note, 'does not have this Service yet')
    t.same(source.view().rules.lines, [])
    end(first)
    t.equal(lineOf('s1')?.note, undefined)
    t.equal(source.view().pending, '')
    t.equal(source.view().path.ways.length, 2)
    const rules = source.view().rules.lines
    t.not(rules.length, 0)

    const second = cluster.put(numbered(1, 3), numbered(2)).take()
    begin(second)
    const before = source.view()
    t.equal(before.path.ways.length, 2, 'two of three, as the kernel does it')
    t.same(before.rules.lines, rules)
    t.same(
      before.pods.map(({ isPending }) => isPending),
      [undefined, undefined, true],
    )
    t.equal(before.pending, '2 service ports are not in the kernel as they should be')
    end(second, { outcome: 'failed', error: 'the kernel is busy' })
    t.match(source.view().pending, /IPv4 sync failed .* the kernel is busy/)
    t.equal(source.view().path.ways.length, 2)
    begin(second)
    end(second, { failed: [{ key: 'default/s2:http/TCP', reason: 'port taken' }] })
    t.equal(source.view().path.ways.length, 3)
    t.equal(lineOf('s1')?.note, undefined)
    t.equal(lineOf('s2')?.note, 'not in the kernel: port taken')
    t.equal(source.view().pending, '1 service port is not in the kernel as it should be')
    begin(second)
    end(second)
    t.equal(lineOf('s2')?.note, undefined)

    const third = cluster.remove(numbered(2)).take()
    begin(third)
    t.equal(lineOf('s2')?.note, 'leaving the kernel')
    end(third)
    t.equal(lineOf('s2'), undefined)
    t.equal(source.view().pending, '')
  })
}

t.test('the page tells the protocol of a Service', async (t) => {
  for (const protocol of ['TCP', 'UDP', 'SCTP'] as const) {
    const { source, sync } = await opened('nftables')
    sync(states().put(service({ protocol })).take())
    const { service: shown, path } = source.view()
    t.equal(shown.protocol, protocol)
    t.ok(path.ways.length > 0, `${protocol}: there is a way`)
  }
})

t.test('a Service whose protocol changes keeps its line', async (t) => {
  const { sync, lineOf } = await opened('nftables')
  const tracker = states()
  for (const protocol of ['TCP', 'SCTP', 'UDP'] as const) {
    sync(tracker.put(service({ protocol })).take())
    t.match(lineOf('web'), { ports: `80/${protocol}` })
  }
})

t.test('a sync under way goes before a view, but not for ever', async (t) => {
  const { source, begin, end } = await opened('nftables')
  const state = states().put(numbered(1)).take()
  await source.idle()
  begin(state)
  const waiting = source.idle()
  t.equal(await Promise.race([waiting, Promise.resolve('under way')]), 'under way')
  end(state)
  await waiting
  begin(state)
  // The page shows a sync that hangs, so it does not wait for it. A timer keeps this process alive.
  const alive = setInterval(() => undefined, 1_000)
  await source.idle()
  clearInterval(alive)
  t.equal(source.view().services.size, 1)
})

t.test('connections are counted by pod, over both IP families', async (t) => {
  const podNames = new PodNames()
  const ips = { IPv4: '10.244.1.1', IPv6: 'fd00::1' }
  for (const [addressType, ip] of Object.entries(ips)) {
    podNames.upsert('EndpointSlice', {
      addressType,
      metadata: {
        ...{ namespace: 'default', name: `web-${addressType}` },
        labels: { 'kubernetes.io/service-name': 'web' },
      },
      endpoints: [{ addresses: [ip], targetRef: { kind: 'Pod', name: 'web-1' } }],
    })
  }
  const endpoints = [{ ip: ips.IPv4 }, { ip: '10.244.1.2' }]
  const shown = state([service({ name: 'web', clusterIp: '10.96.0.10', endpoints })])
  const planner = (await modeLoaders.nftables()).planner(testConfig)
  const counts = { '10.244.1.1:8080': 5, '10.244.1.2:8080': 4, '[fd00::1]:8080': 3 }
  const source = new DashboardSource({
    ...{ mode: 'nftables', nodeName: 'node-1', podNames, log: silent, flows: undefined },
    current: () => ({ config: testConfig, planner }),
    count: () => Promise.resolve(Object.entries(counts).map(([name, count]) => ({ name, count }))),
  })
  source.started([shown])
  const cost = { planMs: 0, applyMs: 0, bytes: 0, objects: 0, full: false }
  const done = {
    family: 'IPv4',
    outcome: 'applied',
    failed: [],
    plan: planner.plan(shown),
  } as const
  source.synced({ ...done, ...cost })
  t.teardown(source.subscribe(() => undefined))
  source.view()
  await source.count()
  t.same(source.view().answers, [
    { name: 'web-1', count: 8 },
    { name: '10.244.1.2:8080', count: 4 },
  ])
})

t.test('the page shows what stops connections on the node while it does', async (t) => {
  const { source } = await opened('nftables')
  let told = 0
  source.subscribe(() => told++)
  source.obstacles(['the connection table is full; raise it'])
  t.same(source.view().limits, [
    'Connections fail on this node: the connection table is full; raise it.',
  ])
  source.obstacles([])
  t.same(source.view().limits, [])
  t.equal(told, 2, 'an open page is told each time')
})
