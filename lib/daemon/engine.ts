import { setFlagsFromString } from 'node:v8'

/** Bytes of bytecode that a function runs before V8 optimizes it: eight times V8's default. */
const bytesBeforeOptimizing = 540_000

/** Sets V8 up for a program that starts fast and then rests. Called before anything else is loaded. */
export function setUpEngine(): void {
  for (const flag of [smallNursery, ...flagsToOptimizeLater]) setFlagsFromString(flag)
}

/**
 * Keeps the part of the heap where V8 puts new objects at its first size. It would grow to 32 MiB
 * while objects are read at the start, and never shrink. New connections cost the same with both.
 */
const smallNursery = '--semi-space-growth-factor=1'

/**
 * A start runs most functions some hundred times, and V8's own threads take a third of its
 * processor time to optimize them (docs/scale.md). With this flag V8 optimizes only functions that
 * stay busy, and a little later. From version 12 on, V8 counts calls instead of bytes, and refuses
 * flags that it does not know.
 */
export const flagsToOptimizeLater: readonly string[] =
  Number.parseInt(process.versions.v8) >= 12 ? [] : [`--interrupt-budget=${bytesBeforeOptimizing}`]
