import { setTimeout as delay } from 'node:timers/promises'

/** A wait fails after this time, which is long enough for a machine ten times as busy. An answer that must come may take as long. */
export const patienceMs = 300_000

/** Waits until something is so, and fails with what it waited for. */
export async function until(
  what: string | (() => string),
  isSo: () => boolean | Promise<boolean>,
  everyMs = 50,
): Promise<void> {
  const end = performance.now() + patienceMs
  while (!(await isSo())) {
    if (performance.now() > end) {
      const told = typeof what === 'string' ? what : what()
      throw new Error(`waited ${patienceMs / 1000} s in vain for ${told}`)
    }
    await delay(everyMs)
  }
}

/** Waits until there is an answer, and returns it. */
export async function untilThere<T>(
  what: string | (() => string),
  ask: () => T | Promise<T>,
): Promise<NonNullable<T>> {
  let answer: T | undefined
  await until(what, async () => Boolean((answer = await ask())), 20)
  return answer as NonNullable<T>
}

/** Waits for something that costs little to ask. */
export const untilTrue = (isSo: () => boolean | Promise<boolean>, everyMs = 5): Promise<void> =>
  until(() => String(isSo), isSo, everyMs)

/** Waits until what is seen matches. What cannot be seen yet may throw. */
export async function untilSeen(what: string, seen: () => unknown, pattern: RegExp): Promise<void> {
  let last: unknown
  const matches = async () => {
    last = await Promise.resolve(seen()).catch((error: unknown) => error)
    return pattern.test(String(last))
  }
  await until(() => `${what}; last seen: ${String(last).slice(0, 2000)}`, matches, 25)
}
