import { aborted, pause } from '../async.js'
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

/**
 * The first is twice as long as a program waits for the xtables lock. Where one program hangs, the
 * next ones probably do, too.
 */
const patience = { firstMs: 10_000, laterMs: 2_000 }

/**
 * Does the work. While this process ends, it ends programs that hang: they get minutes otherwise, and
 * whoever ends this process is less patient. Rules of userspace mode would then stay.
 */
export async function endHanging(
  log: Pick<Log, 'info' | 'warn'>,
  ending: AbortSignal,
  work: () => Promise<void>,
  { firstMs, laterMs } = patience,
) {
  const programs = watchPrograms()
  const done = new AbortController()
  const watch = async () => {
    await aborted(ending)
    log.info({}, 'stopping')
    const since = performance.now()
    const ended = new WeakSet()
    for (let patienceMs = firstMs; !done.signal.aborted;) {
      for (const program of programs.running) {
        const waitedMs = performance.now() - Math.max(program.startedAt, since)
        if (waitedMs < patienceMs || ended.has(program)) continue
        log.warn({ command: program.command }, 'a program hangs; it is ended, for this proxy ends')
        ended.add(program)
        program.end()
        patienceMs = laterMs
      }
      await pause(500, done.signal)
    }
  }
  void watch()
  try {
    await work()
  } finally {
    done.abort()
    programs.end()
  }
}
