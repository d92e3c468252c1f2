import { setFlagsFromString } from 'node:v8'

/**
 * Newer V8 multiplies calls by the length of a function, in bytes of bytecode, in 32 bits: beyond
 * 34,952 calls the longest function it optimizes, 61,440 bytes, would come out negative and be
 * optimized at once. V8 of Node 20 has one number for all.
 */
const calls = 34_000
const bytesOfBytecode = 20_000_000

const flags =
  Number.parseInt(process.versions.v8) < 12
    ? [`--interrupt-budget=${bytesOfBytecode}`]
    : [`--invocation-count-for-maglev=${calls}`, `--invocation-count-for-turbofan=${calls}`]

/**
 * V8 optimizes a function once it has run often, by default after a few hundred or thousand calls.
 * That pays where the same code runs all the time. This mode works for a millisecond a few
 * times a second, and V8 compiles for 10-35 ms on a thread of its own, again and again for minutes:
 * where that gets our processor, a change waits for it (docs/nftables.md). Code that is busy
 * nevertheless, as with 100,000 objects at start, is still optimized within the second.
 */
export function compileLate(): void {
  for (const flag of flags) setFlagsFromString(flag)
}
