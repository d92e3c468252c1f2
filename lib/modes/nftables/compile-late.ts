import { setFlagsFromString } from 'node:v8'

/**
 * V8 optimizes a function once it has run often, by default after a few thousand calls: here three
 * hundred times as many. V8 of Node 20 counts bytes of bytecode and not calls.
 */
const flags =
  Number.parseInt(process.versions.v8) < 12
    ? ['--interrupt-budget=20000000']
    : ['--invocation-count-for-maglev=100000', '--invocation-count-for-turbofan=1000000']

/**
 * Optimizing pays where the same code runs all the time. This mode works for a millisecond a few
 * times a second, and V8 compiles for 10-35 ms on a thread of its own, again and again for minutes:
 * where that gets our processor, a change waits for it (docs/nftables.md). Code that is busy
 * nevertheless, as with 100,000 objects at start, is still optimized within the second.
 */
export function compileLate(): void {
  for (const flag of flags) setFlagsFromString(flag)
}
