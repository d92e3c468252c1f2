import { setFlagsFromString } from 'node:v8'

/** Bytes of bytecode that a function runs before V8 optimizes it; eight times V8's own measure. */
const bytesBeforeOptimizing = 540_000

/** Sets V8 up for a program that starts fast and then rests. Called before anything else is loaded. */
export function setUpEngine(): void {
  keepNurserySmall()
  for (const flag of flagsToOptimizeLater) setFlagsFromString(flag)
}

/**
 * Keeps the part of the heap where V8 puts new objects at its first size. It would grow to 32 MiB
 * while objects are read at the start, and never shrink.
 */
function keepNurserySmall(): void {
  setFlagsFromString('--semi-space-growth-factor=1')
}

/** Where every connection needs new objects, a larger part for them saves time. */
export function letNurseryGrow(): void {
  setFlagsFromString('--semi-space-growth-factor=2')
}

/**
 * A start runs most functions some hundred times, and V8's own threads take a third of its processor
 * time to optimize them (docs/scale.md). What stays busy is optimized nevertheless, a little later.
 * From version 12 on, V8 counts calls instead of bytes, and refuses flags that it does not know.
 */
export const flagsToOptimizeLater: readonly string[] =
  Number.parseInt(process.versions.v8) >= 12 ? [] : [`--interrupt-budget=${bytesBeforeOptimizing}`]
