import { pause } from '../async.js'
import { watchPrograms } from '../kernel/iptables/start.js'
import type { Log } from '../modes/mode.js'

const firstMs = 5_000
/** Each line comes after so many times the wait for the line before it. */
const rarer = 5

/** Does the work, and tells what it waits for if it takes long: after 5 s, 30 s, and so on. */
export async function tellWaits<T>(log: Log, work: () => Promise<T>): Promise<T> {
  const programs = watchPrograms()
  const done = new AbortController()
  const began = performance.now()
  const secondsSince = (then: number) => Math.round((performance.now() - then) / 1000)
  const tell = async () => {
    for (let ms = firstMs; ; ms *= rarer) {
      await pause(ms, done.signal)
      if (done.signal.aborted) return
      const waitingFor = [...programs.running].map(
        ({ command, startedAt }) => `${command} (${secondsSince(startedAt)} s)`,
      )
      log.info({ waitedSeconds: secondsSince(began), waitingFor }, 'the start takes long')
    }
  }
  void tell()
  try {
    return await work()
  } finally {
    done.abort()
    programs.end()
  }
}
