import { realpathSync } from 'node:fs'
import { setFlagsFromString } from 'node:v8'
import { Worker } from 'node:worker_threads'

/**
 * Sets V8 up for a program that starts fast and then rests. The program calls it before anything
 * else is loaded. Each of its threads calls it too, because V8 undoes the first flag, for all
 * threads, when it makes one.
 */
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
 * processor time to optimize them (docs/scale.md). With these flags V8 optimizes only functions
 * that stay busy: after eight times as much work as by itself. Up to version 11 V8 counts the bytes
 * of bytecode that a function runs, and from version 12 on its calls.
 */
export const flagsToOptimizeLater: readonly string[] =
  Number.parseInt(process.versions.v8) >= 12
    ? ['--invocation-count-for-maglev=3200', '--invocation-count-for-turbofan=24000']
    : ['--interrupt-budget=540000']

/** Starts a thread of this program, without its loaders and coverage, which would slow the start. */
export function startThread(file: URL, workerData?: unknown): Worker {
  leaveGoneFolder()
  return new Worker(file, { workerData, execArgv: [] })
}

/**
 * Leaves a current folder that was deleted, such as that of an older version. Node starts no thread
 * there. Called before each, because Node itself remembers the folder and does not notice.
 */
function leaveGoneFolder(): void {
  try {
    realpathSync.native('.')
  } catch {
    process.chdir('/')
  }
}
