import { setTimeout as delay } from 'node:timers/promises'

/** Resolves after `ms`, or at once when the signal comes; never rejects. */
export async function pause(ms: number, signal: AbortSignal): Promise<void> {
  // Aborted is as good as over; who waits looks at the signal next.
  await delay(ms, undefined, { signal }).catch(() => undefined)
}
