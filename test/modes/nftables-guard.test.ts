import t from 'tap'
import { KernelError } from '../../lib/errors.js'
import { knownByFamily } from '../../lib/modes/known.js'
import { Guard } from '../../lib/modes/nftables/guard.js'
import { nftablesPlanner, type NftablesPlan } from '../../lib/modes/nftables/plan.js'
import { contextOf } from '../support/mode-context.js'
import type { ListedChain } from '../../lib/kernel/nftables/reader.js'
import type { Rule } from '../../lib/kernel/nftables/model.js'
import { service, states, testSettings } from '../support/states.js'
import { untilTrue } from '../support/until.js'

/**
 * A guard of a kernel that is empty at first. Every comparison finds this when it reads the first
 * chain. Elements are always as they should be.
 */
function guarding({ verifyEveryMs = 1_000_000 } = {}) {
  const { context, resyncs } = contextOf()
  const planner = nftablesPlanner(testSettings)
  const cluster = states()
  const plan = (endpoints: number) =>
    planner(cluster.put(service({ endpoints, nodePort: 30080 })).take())
  const known = knownByFamily<NftablesPlan>()
  const apply = (now: NftablesPlan) =>
    known.IPv4.update(() => Promise.resolve({ now, result: undefined }))
  const seen: { unclear?: () => void; comparisons: number } = { comparisons: 0 }
  const next: { chains: () => unknown } = { chains: () => undefined }
  let listed: ReadonlyMap<string, ListedChain> = new Map()
  const kernelHas = (plan: NftablesPlan, isThere = (_chain: string) => true) => {
    const chains = [...plan.parts.values()].flatMap((part) => part.chains)
    const rules = (of: readonly Rule[]) =>
      of.map((has) => ({ isLike: (rule: Rule) => rule === has }))
    listed = new Map(
      chains
        .filter(({ name }) => isThere(name))
        .map(({ name, rules: of }) => [
          name,
          { policy: undefined, hasFormOf: () => true, rules: rules(of) },
        ]),
    )
  }
  const guard = new Guard({
    context,
    known,
    reader: {
      contents: () => Promise.resolve(undefined),
      chains: async () => {
        seen.comparisons++
        await next.chains()
        return listed
      },
      sets: () => Promise.resolve(new Map()),
      isDormant: () => Promise.resolve(false),
      elements: () =>
        Promise.resolve({ size: 0, has: () => true, valueAt: () => undefined, others: () => [] }),
      remembered: () => Promise.resolve(new Map()),
    },
    watch: ({ onUnclear }) => {
      seen.unclear = onUnclear
      return { around: (commit) => commit(), run: () => Promise.resolve() }
    },
    tickMs: 10,
    verifyEveryMs: () => verifyEveryMs,
  })
  return { guard, resyncs, seen, next, known, apply, plan, kernelHas }
}

async function running(guard: Guard, during: () => Promise<void>): Promise<void> {
  const end = new AbortController()
  const done = guard.run(end.signal)
  await during()
  end.abort()
  await done
}

const pause = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms))

void t.test('NF19: the kernel is not listed without a sign of foreign changes', async (t) => {
  const { guard, seen, apply, plan } = guarding()
  await apply(plan(1))
  await running(guard, () => pause(100))
  t.equal(seen.comparisons, 0)
})

void t.test('NF29: the kernel is compared at the next check after events were lost', async (t) => {
  const { guard, seen, resyncs, apply, plan } = guarding()
  await apply(plan(1))
  await running(guard, async () => {
    seen.unclear?.()
    await untilTrue(() => resyncs.length > 0)
    await pause(50)
  })
  t.match(resyncs, [/is missing$/])
  t.equal(seen.comparisons, 1, 'once')
})

void t.test('NF29: the kernel is compared from time to time in any case', async (t) => {
  const { guard, resyncs, apply, plan } = guarding({ verifyEveryMs: 30 })
  await apply(plan(1))
  await running(guard, () => untilTrue(() => resyncs.length > 1))
  t.ok(resyncs.length > 1)
})

void t.test('what a sync changed during a comparison is compared again', async (t) => {
  const { guard, seen, next, resyncs, apply, plan, kernelHas } = guarding()
  const before = plan(1)
  await apply(before)
  kernelHas(before)
  next.chains = () => {
    next.chains = () => undefined
    const after = plan(3)
    kernelHas(after)
    return apply(after)
  }
  await running(guard, async () => {
    seen.unclear?.()
    await untilTrue(() => seen.comparisons > 1)
    await pause(50)
  })
  t.same(resyncs, [], 'the kernel has the new plan')
  t.equal(seen.comparisons, 2)
})

void t.test('under steady changes a fault elsewhere is found by one comparison', async (t) => {
  const { guard, seen, next, resyncs, apply, plan, kernelHas } = guarding()
  const steadily = (endpoints: number) => () => {
    next.chains = steadily(endpoints + 1)
    const after = plan(endpoints)
    kernelHas(after)
    return apply(after)
  }
  await apply(plan(1))
  next.chains = steadily(2)
  await running(guard, async () => {
    seen.unclear?.()
    await untilTrue(() => seen.comparisons >= 3)
    await pause(100)
  })
  t.equal(seen.comparisons, 3, 'then it waits for the next sign')
  t.same(resyncs, [])
  kernelHas(plan(9), (chain) => chain !== 'mark-for-masquerade')
  next.chains = () => apply(plan(10))
  await guard.verify()
  t.match(resyncs, [/mark-for-masquerade is missing/])
})

void t.test('a kernel that cannot be read is read again later', async (t) => {
  const { guard, seen, next, resyncs, apply, plan } = guarding()
  await apply(plan(1))
  next.chains = () => {
    next.chains = () => undefined
    throw new KernelError('busy', 'list rules: busy')
  }
  await running(guard, async () => {
    seen.unclear?.()
    await untilTrue(() => resyncs.length > 0)
  })
  t.equal(seen.comparisons, 2)
})

void t.test('after forget() nothing is compared before the next apply', async (t) => {
  const { guard, seen, known, apply, plan } = guarding()
  await apply(plan(1))
  known.IPv4.forget()
  await guard.verify()
  t.equal(seen.comparisons, 0)
  await apply(plan(1))
  await guard.verify()
  t.equal(seen.comparisons, 1)
})
