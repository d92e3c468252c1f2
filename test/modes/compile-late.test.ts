import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInThisContext } from 'node:vm'
import t from 'tap'
import { compileLate } from '../../lib/modes/nftables/compile-late.js'

void t.test(
  'V8 leaves code alone that runs now and then, and optimizes what is busy',
  async (t) => {
    setFlagsFromString('--allow-natives-syntax')
    t.ok(await isOptimizedAfter(20_000), 'as V8 does it by itself, this is busy')
    t.ok(await isOptimizedAfter(4_000, { statements: 150 }), 'and so is this')
    compileLate()
    t.notOk(await isOptimizedAfter(20_000))
    t.notOk(await isOptimizedAfter(4_000, { statements: 150 }), 'a long function has time as well')
    t.ok(await isOptimizedAfter(20_000_000))
  },
)

/** Whether V8 has optimized a function of so many statements, a new one, after so many calls. */
async function isOptimizedAfter(calls: number, { statements = 1 } = {}): Promise<boolean> {
  // Of text that differs, so that V8 counts each by itself.
  const { run, isOptimized } = runInThisContext(`(() => {
    const busy = (value) => {
      ${'value = (value * 31 + 7) % 101;'.repeat(statements)}
      return value + ${calls} + ${performance.now()}
    }
    let sum = 0
    const run = (calls) => { for (let call = 0; call < calls; call++) sum += busy(sum) % 1009 }
    // Or it would take the function in.
    %NeverOptimizeFunction(run)
    return { run, isOptimized: () => %ActiveTierIsMaglev(busy) || %ActiveTierIsTurbofan(busy) }
  })()`) as { run: (calls: number) => void; isOptimized: () => boolean }
  for (let turn = 0; turn < 100; turn++) {
    run(calls / 100)
    // V8 compiles on another thread, and takes up what it has at the next call.
    await sleep(5)
    if (isOptimized()) return true
  }
  return false
}
