import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInThisContext } from 'node:vm'
import t from 'tap'
import { compileLate } from '../../lib/modes/nftables/compile-late.js'

void t.test(
  'V8 leaves code alone that runs now and then, and optimizes what is busy',
  async (t) => {
    setFlagsFromString('--allow-natives-syntax')
    t.ok(await isOptimizedAfter(50_000), 'as V8 does it by itself, this is busy')
    compileLate()
    t.notOk(await isOptimizedAfter(50_000))
    t.ok(await isOptimizedAfter(20_000_000))
  },
)

/** Whether V8 has optimized a function, a new one, after so many calls. */
async function isOptimizedAfter(calls: number): Promise<boolean> {
  // Of text that differs, so that V8 counts each by itself.
  const { run, status } = runInThisContext(`(() => {
    const busy = (value) => (value * 31 + ${calls} + ${performance.now()}) % 1009
    let sum = 0
    const run = (calls) => { for (let call = 0; call < calls; call++) sum += busy(sum) }
    // Or it would take the function in.
    %NeverOptimizeFunction(run)
    return { run, status: () => %GetOptimizationStatus(busy) }
  })()`) as { run: (calls: number) => void; status: () => number }
  const isOptimized = 1 << 4
  for (let turn = 0; turn < 100; turn++) {
    run(calls / 100)
    // V8 compiles on another thread, and takes up what it has at the next call.
    await sleep(5)
    if ((status() & isOptimized) !== 0) return true
  }
  return false
}
