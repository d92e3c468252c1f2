import { setFlagsFromString } from 'node:v8'

/** Bytes of bytecode that a function runs before V8 optimizes it; its own measure is some 70,000. */
const bytesBeforeOptimizing = 20_000_000

/**
 * Optimizing pays where the same code runs all the time. This mode works for a millisecond a few
 * times a second, and V8 compiles for 10-35 ms on a thread of its own, again and again for minutes:
 * where that gets our processor, a change waits for it (docs/nftables.md). Code that is busy
 * nevertheless, as with 100,000 objects at start, is still optimized within the second.
 */
export function compileLate(): void {
  setFlagsFromString(`--interrupt-budget=${bytesBeforeOptimizing}`)
}
