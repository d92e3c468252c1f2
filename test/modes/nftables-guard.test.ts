import t from 'tap'
import { KernelError } from '../../lib/errors.js'
import { knownByFamily } from '../../lib/modes/known.js'
import { Guard } from '../../lib/modes/nftables/guard.js'
import { nftablesPlanner, type NftablesPlan } from '../../lib/modes/nftables/plan.js'
import { contextOf } from '../support/mode-context.js'
import { service, states, testSettings } from '../support/states.js'

/** A guard of an empty kernel. Every comparison finds this when it reads the first chain. */
function guarding({ verifyEveryMs = 1_000_000 } = {}) {
  const { context, resyncs } = contextOf()
  const planner = nftablesPlanner(testSettings)
  const cluster = states()
  const plan = (endpoints: number) => planner(cluster.put(service({ endpoints })).take())
  const known = knownByFamily<NftablesPlan>()
  const apply = (now: NftablesPlan) =>
    known.IPv4.update(() => Promise.resolve({ now, result: undefined }))
  const seen: { unclear?: () => void; comparisons: number } = { comparisons: 0 }
  const next: { chains: () => unknown } = { chains: () => undefined }
  const guard = new Guard({
    context,
    known,
    reader: {
      chains: async () => {
        seen.comparisons++
        await next.chains()
        return new Map()
      },
      elements: () => Promise.reject(new Error('not asked for')),
      remembered: () => Promise.resolve(new Map()),
    },
    watch: ({ onUnclear }) => {
      seen.unclear = onUnclear
      return { around: (commit) => commit(), run: () => Promise.resolve() }
    },
    tickMs: 10,
    verifyEveryMs: () => verifyEveryMs,
  })
  return { guard, resyncs, seen, next, known, apply, plan }
}

async function running(guard: Guard, during: () => Promise<void>): Promise<void> {
  const end = new AbortController()
  const done = guard.run(end.signal)
  await during()
  end.abort()
  await done
}

const pause = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms))

async function until(isSo: () => boolean): Promise<void> {
  for (let left = 3000; !isSo() && left > 0; left--) await pause(10)
}

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
    await until(() => resyncs.length > 0)
    await pause(50)
  })
  t.match(resyncs, [/is missing$/])
  t.equal(seen.comparisons, 1, 'once')
})

void t.test('NF29: the kernel is compared from time to time in any case', async (t) => {
  const { guard, resyncs, apply, plan } = guarding({ verifyEveryMs: 30 })
  await apply(plan(1))
  await running(guard, () => until(() => resyncs.length > 1))
  t.ok(resyncs.length > 1)
})

void t.test('a comparison during a sync reports nothing and is repeated', async (t) => {
  const { guard, seen, next, resyncs, apply, plan } = guarding()
  await apply(plan(1))
  next.chains = () => {
    next.chains = () => undefined
    return apply(plan(3))
  }
  await running(guard, async () => {
    seen.unclear?.()
    await until(() => seen.comparisons > 0)
    t.same(resyncs, [])
    await until(() => resyncs.length > 0)
  })
  t.equal(seen.comparisons, 2)
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
    await until(() => resyncs.length > 0)
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
