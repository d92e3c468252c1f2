import t from 'tap'
import { KernelError, type KernelErrorKind } from '../../lib/errors.js'
import type { Command, Transaction } from '../../lib/kernel/nftables/model.js'
import { Nft, type RulesetWriter } from '../../lib/kernel/nftables/nft.js'
import type { ChainsAndSets, ClientReader } from '../../lib/kernel/nftables/reader.js'
import { NftablesApplier } from '../../lib/modes/nftables/apply.js'
import { knownByFamily } from '../../lib/modes/known.js'
import { nftablesPlanner, type NftablesPlan } from '../../lib/modes/nftables/plan.js'
import { contextOf } from '../support/mode-context.js'
import { service, states, testSettings } from '../support/states.js'

/** An applier whose transactions go to a list, and a Service `web` that comes and goes. */
function applying(spec: Parameters<typeof service>[0] = {}, there?: ChainsAndSets) {
  const { context, resyncs } = contextOf()
  const committed: (readonly Command[])[] = []
  const clock = { ms: 0 }
  const fault: { kind?: KernelErrorKind; once?: boolean } = {}
  const writer: RulesetWriter = {
    name: 'fake',
    commit: ({ commands }) => {
      if (fault.once) {
        delete fault.once
        return Promise.reject(new KernelError('exists', 'fake: exists'))
      }
      if (fault.kind) return Promise.reject(new KernelError(fault.kind, `fake: ${fault.kind}`))
      committed.push(commands)
      return Promise.resolve(1)
    },
    check: () => Promise.resolve(),
  }
  const known = knownByFamily<NftablesPlan>()
  const tables = { contents: () => Promise.resolve(there) }
  const applier = new NftablesApplier({ known, writer, tables, context, now: () => clock.ms })
  const plan = nftablesPlanner(testSettings)
  const cluster = states()
  return {
    applier,
    known,
    resyncs,
    committed,
    clock,
    fault,
    present: (more: typeof spec = {}) => plan(cluster.put(service({ ...spec, ...more })).take()),
    absent: () => plan(cluster.remove({ namespace: 'default', name: 'web' }).take()),
  }
}

void t.test(
  'NF17, NF20: a full sync is requested at once if chains to delete are already gone',
  async (t) => {
    const { applier, resyncs, clock, fault, present, absent } = applying()
    const first = present()
    await applier.apply(first)
    await applier.apply(absent())
    fault.kind = 'not-found'
    clock.ms += 1000
    await applier.sweep()
    t.same(resyncs, ['somebody else removed nftables chains'])
    await applier.sweep()
    t.equal(resyncs.length, 1, 'and not tried again')
  },
)

void t.test('NF20: a full write forgets the chains that wait for deletion', async (t) => {
  const { applier, known, resyncs, committed, clock, present, absent } = applying()
  const first = present()
  await applier.apply(first)
  const second = absent()
  await applier.apply(second)
  known.IPv4.forget()
  await applier.apply(second)
  clock.ms += 1000
  const before = committed.length
  await applier.sweep()
  t.same([committed.length - before, resyncs], [0, []])
})

void t.test(
  'NF04, NF17: what a table has besides the plan goes a moment later, or with it',
  async (t) => {
    const { applier, known, resyncs, committed, clock, fault, present } = applying(
      {},
      {
        chains: [
          { name: 'services', rules: [] },
          { name: 'old', rules: [] },
        ],
        sets: [{ name: 'older', key: [], holds: 'keys' }],
      },
    )
    const plan = present()
    const verbsOf = (commands: readonly Command[] | undefined) =>
      new Set(commands?.map((command) => command.do))
    await applier.apply(plan)
    const [first] = committed
    t.notOk(verbsOf(first).has('delete-table'))
    t.match(first?.slice(0, 4), [
      { do: 'add-table' },
      { do: 'flush-chain', chain: { name: 'services' } },
      { do: 'flush-chain', chain: { name: 'old' } },
      { do: 'flush-set', set: { name: 'older' } },
    ])
    clock.ms += 1000
    fault.kind = 'busy'
    for (let attempt = 0; attempt < 3; attempt++) {
      await applier.sweep()
      clock.ms += 1000
    }
    t.same(resyncs, ['unused nftables chains could not be deleted'])
    delete fault.kind
    for (const wanted of [true, false]) {
      known.IPv4.forget()
      await applier.apply(plan)
      t.equal(verbsOf(committed.at(-1)).has('delete-table'), wanted)
    }
    await applier.sweep()
    t.equal(committed.length, 3, 'not before its time')
    clock.ms += 1000
    await applier.sweep()
    t.match(committed.at(-1), [
      { do: 'delete-chain', chain: { name: 'old' } },
      { do: 'delete-set', set: { name: 'older' } },
    ])
    known.IPv4.forget()
    fault.once = true
    await applier.apply(plan)
    t.ok(verbsOf(committed.at(-1)).has('delete-table'), 'the kernel refused to keep it')
  },
)

void t.test('NF20: a chain is deleted in time, even if others retire after it', async (t) => {
  const { applier, committed, clock, present } = applying({ affinitySeconds: 60, endpoints: 3 })
  const first = present()
  await applier.apply(first)
  const second = present({ endpoints: 2 })
  await applier.apply(second)
  clock.ms = 900
  await applier.apply(present({ endpoints: 1 }))
  const before = committed.length
  await applier.sweep()
  t.equal(committed.length, before, 'not before its time')
  clock.ms = 1000
  await applier.sweep()
  const deletions = committed.slice(before).flat()
  t.same(
    deletions.map((command) => command.do),
    ['delete-chain', 'delete-chain', 'delete-set', 'delete-set'],
  )
  clock.ms = 3000
  await applier.sweep()
  t.equal(committed.length, before + 1)
})

void t.test(
  'a set that waits for deletion is deleted before it returns with another timeout',
  async (t) => {
    const { applier, committed, present, absent } = applying({ affinitySeconds: 60, endpoints: 1 })
    const first = present()
    await applier.apply(first)
    const second = absent()
    await applier.apply(second)
    await applier.apply(present({ affinitySeconds: 90 }))
    const sets = committed.at(-1)?.flatMap((command) => ('set' in command ? [command.do] : []))
    t.same(sets, ['delete-set', 'add-set'])
  },
)

void t.test(
  'NF21: transactions run one after the other, in the order of the requests',
  async (t) => {
    const { context } = contextOf()
    const seen: string[] = []
    const slow: RulesetWriter = {
      name: 'slow',
      commit: async ({ commands }: Transaction) => {
        seen.push(`${commands.length} begin`)
        await new Promise((resolve) => setTimeout(resolve, 20))
        seen.push(`${commands.length} end`)
        return 1
      },
      check: () => Promise.resolve(),
    }
    const applier = new NftablesApplier({
      known: knownByFamily(),
      writer: slow,
      context,
      now: () => 0,
    })
    const { present } = applying()
    const first = present()
    const second = present({ endpoints: 3 })
    await Promise.all([applier.apply(first), applier.apply(second)])
    t.equal(seen.length, 4)
    t.same([seen[1], seen[3]], [seen[0]?.replace('begin', 'end'), seen[2]?.replace('begin', 'end')])
  },
)

void t.test(
  'NF15: the table is written, even if the clients of session affinity cannot be read',
  async (t) => {
    const { context } = contextOf()
    const texts: string[] = []
    const writer = new Nft((_, args, options) => {
      if (args[0] === '-j') return Promise.resolve({ code: 0, stdout: 'no JSON', stderr: '' })
      texts.push(String(options?.stdin))
      return Promise.resolve({ code: 0, stdout: '', stderr: '' })
    })
    const applier = new NftablesApplier({
      known: knownByFamily(),
      writer,
      reader: writer,
      context,
      now: () => 0,
    })
    await applier.apply(applying({ affinitySeconds: 60 }).present())
    t.match(texts, [/add map ip kube-proxy service-ips/])
  },
)

void t.test('NF19, NF21: an ordinary sync is one transaction and lists nothing', async (t) => {
  const { context } = contextOf()
  const calls: (readonly string[])[] = []
  const writer = new Nft((_, args) => {
    calls.push(args)
    return Promise.resolve({ code: 0, stdout: '', stderr: '' })
  })
  const refuse = () => Promise.reject(new Error('must not read'))
  let isStarted = false
  const reader = {
    remembered: () => (isStarted ? refuse() : Promise.resolve(new Map())),
  }
  const applier = new NftablesApplier({
    known: knownByFamily(),
    writer,
    reader,
    context,
    now: () => 0,
  })
  const plan = nftablesPlanner(testSettings)
  const cluster = states().put(service({ affinitySeconds: 60 }))
  const first = plan(cluster.take())
  await applier.apply(first)
  isStarted = true
  await applier.apply(plan(cluster.put(service({ affinitySeconds: 60, endpoints: 4 })).take()))
  t.same(calls, [
    ['-f', '-'],
    ['-f', '-'],
  ])
})

void t.test(
  'NF17: a full sync is requested if chains cannot be deleted for a long time',
  async (t) => {
    const { context, resyncs } = contextOf()
    let isBroken = false
    const writer: RulesetWriter = {
      name: 'fake',
      commit: () =>
        isBroken
          ? Promise.reject(new KernelError('busy', 'delete chain: busy'))
          : Promise.resolve(1),
      check: () => Promise.resolve(),
    }
    const clock = { ms: 0 }
    const applier = new NftablesApplier({
      known: knownByFamily(),
      writer,
      context,
      now: () => clock.ms,
    })
    const plan = nftablesPlanner(testSettings)
    const cluster = states().put(service())
    const first = plan(cluster.take())
    await applier.apply(first)
    await applier.apply(plan(cluster.remove({ namespace: 'default', name: 'web' }).take()))
    isBroken = true
    for (let attempt = 0; attempt < 3; attempt++) {
      t.same(resyncs, [], 'tried again first')
      clock.ms += 1000
      await applier.sweep()
    }
    t.same(resyncs, ['unused nftables chains could not be deleted'])
  },
)

void t.test('NF15: a client whose affinity has ended is not written again', async (t) => {
  const { context } = contextOf()
  const committed: Command[] = []
  const writer: RulesetWriter = {
    name: 'fake',
    commit: ({ commands }) => Promise.resolve(committed.push(...commands)),
    check: () => Promise.resolve(),
  }
  const left = [
    { address: '192.0.2.1', expiresMs: 0 },
    { address: '192.0.2.2', expiresMs: 1 },
  ]
  const reader: ClientReader = {
    remembered: (_, sets) => Promise.resolve(new Map(sets.map(({ name }) => [name, left]))),
  }
  const applier = new NftablesApplier({
    known: knownByFamily(),
    writer,
    reader,
    context,
    now: () => 0,
  })
  await applier.apply(applying({ affinitySeconds: 60, endpoints: 1 }).present())
  const kept = committed.flatMap((command) =>
    'element' in command && command.element.expiresMs !== undefined ? command.element.key : [],
  )
  t.same(kept, ['192.0.2.2'])
})
